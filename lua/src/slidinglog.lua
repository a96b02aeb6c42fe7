-- SLIDINGLOG: at most `limit` units in any window of time, wherever it is laid.
--
-- The key is a list. Its first element is the head
--   slidinglog/1 <limit> <window µs> <hi> <lo>
-- and every other one an entry, oldest first:
--   <time µs> <hi> <lo>
-- where hi * 2^53 + lo is a running total: of all units charged up to and with
-- this entry, and in the head, of those before the oldest entry. (It wraps at
-- 2^56, which no difference between two of them reaches.) So the units in a
-- stretch of the log are one subtraction, the places in it that matter are
-- found by bisection, and a denied call does not walk the log.
local slidinglog = { name = 'slidinglog', exact = true }

local MAX_ENTRIES = 1048576

-- Time and running total of an entry.
local function entry(key, i)
  local time, hi, lo = redis.call('LINDEX', key, i):match('^(%d+) (%d) (%d+)$')
  return tonumber(time), tonumber(hi), tonumber(lo)
end

-- The first entry in from..to that passes a test which, once passed, is passed
-- by all later ones; the last is known to pass. It is likely near `from`.
local function first_entry(key, from, to, test)
  local low, high, step = from, from, 1
  while high < to and not test(entry(key, high)) do
    low = high + 1
    high = math.min(to, high + step)
    step = step * 2
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if test(entry(key, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

function slidinglog.open(key, algorithm, call)
  local window = call.window
  local head = redis.pcall('LINDEX', key, 0)
  local policy = ('slidinglog/1 %.0f %.0f '):format(call.limit, window)
  local t = call.now
  local count = 0 -- entries in the list
  local first = 1 -- the oldest one that still counts
  local base_hi, base_lo = 0, 0 -- running total before that one
  local last, last_hi, last_lo = nil, 0, 0 -- the newest one

  if head then
    local head_hi, head_lo
    if type(head) == 'string' then
      head_hi, head_lo = head:match('^slidinglog/1 %d+ %d+ (%d) (%d+)$')
    end
    if not head_lo then
      return nil, wrong_type(key, algorithm)
    end
    base_hi, base_lo = tonumber(head_hi), tonumber(head_lo)
    count = redis.call('LLEN', key) - 1
    last, last_hi, last_lo = entry(key, -1)
    t = math.max(t, last)
    if t - last >= window then
      first, base_hi, base_lo = count + 1, last_hi, last_lo
    else
      first = first_entry(key, 1, count, function(time)
        return t - time < window
      end)
      if first > 1 then
        local _
        _, base_hi, base_lo = entry(key, first - 1)
      end
    end
  end

  local hi, lo = minus(last_hi, last_lo, base_hi, base_lo)
  local view = { t = t, hi = hi, lo = lo, reset = first <= count and window - (t - last) or 0 }

  function view.wait(room)
    local time = entry(key, first_entry(key, first, count, function(_, upto_hi, upto_lo)
      local rest_hi, rest_lo = minus(last_hi, last_lo, upto_hi, upto_lo)
      return rest_hi * TWO53 + rest_lo <= room
    end))
    return window - (t - time)
  end

  local function write(n, ttl)
    local total_hi, total_lo = plus(last_hi, last_lo, n)
    local newest = ('%.0f %.0f %.0f'):format(t, total_hi, total_lo)
    local new_head = policy .. ('%.0f %.0f'):format(base_hi, base_lo)
    if not head then
      redis.call('RPUSH', key, new_head, newest)
    else
      if last == t then
        redis.call('LSET', key, -1, newest)
      else
        redis.call('RPUSH', key, newest)
        count = count + 1
      end
      -- Entries that no longer count go. If there are too many even so, the
      -- oldest two become one: the second stays, with the total it has.
      local cut = first - 1
      if count - cut > MAX_ENTRIES then
        cut = cut + 1
      end
      if cut > 0 then
        redis.call('LTRIM', key, cut, -1)
      end
      if cut > 0 or new_head ~= head then
        redis.call('LSET', key, 0, new_head)
      end
      local pttl = redis.call('PTTL', key)
      if pttl >= ttl - 500 and pttl <= ttl then
        return
      end
    end
    redis.call('PEXPIRE', key, ('%.0f'):format(ttl))
  end

  function view.charge(n)
    return window, function(ttl)
      write(n, ttl)
    end
  end

  return view
end
