//! Whole numbers in as few bytes as they need: LEB128, seven bits a byte, the lowest first.

/// The longest code of a `u64`.
pub const MAX_BYTES: usize = 10;

/// Writes `value` at `at` and gives the place behind it. What does not fit is not written.
#[inline]
pub fn write(buffer: &mut [u8], mut at: usize, mut value: u64) -> usize {
    loop {
        let low = (value & 0x7f).to_le_bytes()[0];
        value >>= 7;
        if let Some(byte) = buffer.get_mut(at) {
            *byte = if value == 0 { low } else { low | 0x80 };
        }
        at = at.saturating_add(1);
        if value == 0 {
            return at;
        }
    }
}

pub fn push(bytes: &mut Vec<u8>, value: u64) {
    let mut code = [0; MAX_BYTES];
    let length = write(&mut code, 0, value);
    bytes.extend_from_slice(code.get(..length).unwrap_or_default());
}

/// The number at the beginning of `bytes`, which then begins behind it. `None` if it is cut off,
/// over 64 bits, or longer than it need be: every number has one code.
#[inline]
pub fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    let mut shift = 0;
    loop {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && low > 1 {
            return None;
        }
        value |= low.checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return if low == 0 && shift > 0 {
                None
            } else {
                Some(value)
            };
        }
        shift = shift.saturating_add(7);
        if shift > 63 {
            return None;
        }
    }
}
