local limit, window, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local interval = window / limit
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now))
local new_tat = tat + interval
local wait = new_tat - window - now
if wait > 0 then
  return { 0, 0, math.ceil(wait) }
end
redis.call('SET', KEYS[1], new_tat, 'PX', math.ceil(new_tat - now))
return { 1, math.floor((now + window - new_tat) / interval), 0 }
