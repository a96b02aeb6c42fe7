-- Whole numbers in doubles --------------------------------------------------
-- A double holds every whole number up to 2^53. A sum or product of whole
-- numbers that is larger comes out as 2^53 or more, never as less, so comparing
-- it with a bound below 2^53 is still right.

local TWO53 = 9007199254740992
local MAX = TWO53 - 1
local YEARS1000 = 31557600000000000 -- µs

-- Microseconds as whole milliseconds, rounded up.
local function ceil_ms(us)
  local part = us % 1000
  return (us - part) / 1000 + (part > 0 and 1 or 0)
end

-- A count that may pass 2^53 is kept as hi * 2^53 + lo. Three bits of hi are
-- enough: a limit and a debt together stay below 2^54.
local function plus(hi, lo, n)
  if n > MAX - lo then
    return (hi + 1) % 8, n - (TWO53 - lo)
  end
  return hi, lo + n
end

local function minus(hi, lo, hi2, lo2)
  hi, lo = hi - hi2, lo - lo2
  if lo < 0 then
    hi, lo = hi - 1, lo + TWO53
  end
  return hi % 8, lo
end

-- floor(a * b / m) and the remainder, exactly, for a, b and m up to MAX. (A
-- quotient that passes MAX comes back as some number that does, too.)
local function muldiv(a, b, m)
  local product = a * b
  if product <= MAX then
    local q = math.floor(product / m)
    return q, product - q * m
  end
  -- Long division, one bit of the smaller factor after the other.
  if a < b then
    a, b = b, a
  end
  local whole = math.floor(a / m)
  a = a - whole * m
  local q, r = 0, 0
  local rest, bits = math.frexp(b)
  for _ = 1, bits do
    q, rest = q * 2, rest * 2
    if r >= m - r then
      q, r = q + 1, r - (m - r)
    else
      r = r + r
    end
    if rest >= 1 then
      rest = rest - 1
      if r >= m - a then
        q, r = q + 1, r - (m - a)
      else
        r = r + a
      end
    end
  end
  return whole * b + q, r
end
