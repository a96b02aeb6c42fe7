-- The frame all algorithms share ----------------------------------------------
-- An algorithm opens a key for a call and tells
--   t            the time the call counts as: a clock that goes back stands still
--   hi, lo       units in use at t, rounded up, as hi * 2^53 + lo
--   counted      (optional) the largest count behind that
--   reset        µs until nothing counts any more
--   wait(room)   µs until no more than `room` units are in use
--   charge(n)    what n more units would come to: the new `reset`, a function
--                write(ttl) that stores it, and whether the debt alone would
--                take over 1000 years to drain
-- and everything else is the same for all five.

-- The one predicate that says where an algorithm that is not `exact` everywhere
-- can answer: units, and the time at which they are all gone, below 2^53.
local function in_range(algorithm, units, t, reset)
  return algorithm.exact or (units <= MAX and reset <= MAX - t)
end

local OUT_OF_RANGE = 'ERR beyond the range of this script: units counted must be at most 9007199254740991'
  .. ' and now + reset_after at most 9007199254740.991 ms'

local function answer(algorithm, keys, args)
  if #keys ~= 1 or #args < 3 then
    return redis.error_reply("ERR wrong number of arguments for 'rl." .. algorithm.name .. "' command")
  end
  local call, err = parse(algorithm, args)
  if not call then
    return redis.error_reply(err)
  end
  local view
  view, err = algorithm.open(keys[1], algorithm, call)
  if not view then
    return redis.error_reply(err)
  end

  local capacity, cost, mode = call.capacity, call.cost, call.mode
  local used, reset = view.hi * TWO53 + view.lo, view.reset
  if not in_range(algorithm, math.max(used, view.counted or 0), view.t, reset) then
    return redis.error_reply(OUT_OF_RANGE)
  end
  local room = math.max(0, capacity - used)

  -- The verdict.
  local allowed
  if mode == 'PARTIAL' then
    cost = math.min(cost, room)
    allowed = cost
    cost = math.max(cost, 1)
  else
    local fits = used + cost <= capacity
    allowed = (fits or mode == 'FORCE') and 1 or 0
  end

  local retry = 0
  if allowed == 0 then
    retry = cost > capacity and -1 or ceil_ms(view.wait(capacity - cost))
  elseif cost > 0 and mode ~= 'PEEK' then
    -- The charge.
    local write, endless
    reset, write, endless = view.charge(cost)
    local too_much = view.lo - capacity + cost > MAX - view.hi * TWO53
    if too_much or endless then
      return redis.error_reply('ERR debt must be at most 9007199254740991 units and drain within 1000 years')
    end
    if not in_range(algorithm, used + cost, view.t, reset) then
      return redis.error_reply(OUT_OF_RANGE)
    end
    write(ceil_ms(reset) + 1000)
    room = math.max(0, room - cost)
  end
  return { allowed, capacity, room, retry, ceil_ms(reset) }
end
