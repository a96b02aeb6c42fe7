-- As much of a server as the scripts of lua/ ask for: one table of keys, no clock of its own but NOW_MS.
-- Returns run(name, key, ...), which runs a script that was given to load(name, text).

local keys = {} -- name -> { kind = 'string' | 'list', value, expires = ms or nil }
NOW_MS = 1000

local function wrong_type()
  return { err = 'WRONGTYPE Operation against a key holding the wrong kind of value' }
end

-- A value of this kind, nil for a missing key, false for one of another kind.
local function get(key, kind)
  local found = keys[key]
  if found and found.expires and found.expires < NOW_MS then
    keys[key], found = nil, nil
  end
  return found and found.kind == kind and found or found and false or nil
end

-- A place in a list, counted from its end if below 0.
local function place(list, i)
  i = tonumber(i)
  return i < 0 and #list + 1 + i or i + 1
end

local commands = {}

function commands.TIME()
  return { ('%.0f'):format(math.floor(NOW_MS / 1000)), ('%.0f'):format(NOW_MS % 1000 * 1000) }
end

function commands.TYPE(key)
  return { ok = get(key, 'string') and 'string' or get(key, 'list') and 'list' or 'none' }
end

function commands.GET(key)
  local found = get(key, 'string')
  if found == false then return wrong_type() end
  return found and found.value or false
end

function commands.GETRANGE(key, from, to)
  return get(key, 'string').value:sub(from + 1, to + 1)
end

function commands.SET(key, value, ...)
  local options, expires = { ... }, nil
  for i, word in ipairs(options) do
    if word == 'PX' then
      expires = NOW_MS + tonumber(options[i + 1])
      assert(tonumber(options[i + 1]) > 0, 'an expiry above 0')
    elseif word == 'KEEPTTL' then
      expires = keys[key] and keys[key].expires
    end
  end
  keys[key] = { kind = 'string', value = value, expires = expires }
  return { ok = 'OK' }
end

function commands.LINDEX(key, i)
  local found = get(key, 'list')
  if found == false then return wrong_type() end
  return found and found.value[place(found.value, i)] or false
end

function commands.LLEN(key)
  return #get(key, 'list').value
end

function commands.RPUSH(key, ...)
  keys[key] = get(key, 'list') or { kind = 'list', value = {} }
  for _, value in ipairs({ ... }) do
    table.insert(keys[key].value, value)
  end
  return #keys[key].value
end

function commands.LSET(key, i, value)
  local list = get(key, 'list').value
  i = place(list, i)
  assert(list[i], 'an index in range')
  list[i] = value
  return { ok = 'OK' }
end

function commands.LTRIM(key, from, to)
  local found = get(key, 'list')
  local list, kept = found.value, {}
  for i = place(list, from), place(list, to) do
    table.insert(kept, list[i])
  end
  found.value = kept
  return { ok = 'OK' }
end

function commands.PTTL(key)
  local found = get(key, keys[key] and keys[key].kind)
  return not found and -2 or not found.expires and -1 or found.expires - NOW_MS
end

function commands.PEXPIRE(key, ms)
  assert(tonumber(ms) > 0, 'an expiry above 0')
  keys[key].expires = NOW_MS + tonumber(ms)
  return 1
end

redis = {}

function redis.pcall(name, ...)
  return assert(commands[name], name)(...)
end

function redis.call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    error(reply.err)
  end
  return reply
end

function redis.error_reply(text)
  return { err = text }
end

local scripts = {}

function load(name, text)
  scripts[name] = assert(loadstring(text, '@' .. name))
end

function clear()
  keys = {}
end

-- Five integers, as a server makes them of a script's doubles, or the text of an error.
function run(name, key, ...)
  KEYS, ARGV = { key }, { ... }
  local reply = scripts[name]()
  if reply.err then
    return reply.err
  end
  for i = 1, 5 do
    local n = reply[i]
    assert(n == math.floor(n) and n < 2 ^ 53 and n >= -1, 'an integer that a double holds')
  end
  return ('%.0f %.0f %.0f %.0f %.0f'):format(unpack(reply))
end
