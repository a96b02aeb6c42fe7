-- State ---------------------------------------------------------------------
-- All but the log keep one string: the algorithm and its version, the policy
-- last charged, the time of that charge, and two numbers of their own:
--   <algorithm>/1 <limit> <window µs> <capacity> <updated µs> <x> <y>

-- The error for a key that holds something else.
local function wrong_type(key, algorithm)
  local kind = redis.call('TYPE', key).ok
  local text = ''
  if kind == 'string' then
    text = redis.call('GETRANGE', key, 0, 31)
  elseif kind == 'list' then
    text = redis.call('LINDEX', key, 0)
  end
  local held = text:match('^(%l+)/1 ')
  if held and held ~= algorithm.name then
    return ('WRONGTYPE the key holds a %s limiter, not a %s one'):format(held:upper(), algorithm.name:upper())
  end
  if kind == 'ratelimit' then
    return 'WRONGTYPE the key holds a limiter of the module, which scripts cannot read'
  end
  return 'WRONGTYPE the key holds a ' .. (kind == 'zset' and 'sorted set' or kind) .. ', not a rate limiter'
end

-- The record under the key; of a missing key: one with nothing in it.
local function load(key, algorithm, call)
  local text = redis.pcall('GET', key)
  if not text then
    return { limit = call.limit, window = call.window, updated = call.now, x = 0, y = 0 }
  end
  if type(text) == 'string' then
    local limit, window, updated, x, y = text:match(
      '^' .. algorithm.name .. '/1 (%d+) (%d+) %d+ (%d+) (%d+) (%d+)$')
    if y then
      return {
        limit = tonumber(limit),
        window = tonumber(window),
        updated = tonumber(updated),
        x = tonumber(x),
        y = tonumber(y),
      }
    end
  end
  return nil, wrong_type(key, algorithm)
end

local function save(key, algorithm, call, updated, x, y, ttl)
  redis.call('SET', key, ('%s/1 %.0f %.0f %.0f %.0f %.0f %.0f'):format(
    algorithm.name, call.limit, call.window, call.capacity, updated, x, y), 'PX', ('%.0f'):format(ttl))
end
