//! The bytes of DUMP taken apart, so that tests can damage a value and still pass the checksum.
//!
//! ```text
//! type 1 byte, module id (0x81, 8 bytes), [opcode, content]…, end opcode, RDB version 2 bytes, CRC-64 8 bytes
//! ```

/// Bytes behind the value: the RDB version and the checksum.
const FOOTER: usize = 10;
/// The type, a length of 64 bits and the module's id in it.
pub const HEADER: usize = 10;

#[derive(Clone)]
pub struct Payload {
    /// Type, id and content.
    pub value: Vec<u8>,
    version: [u8; 2],
}

impl Payload {
    pub fn of(dump: &[u8]) -> Payload {
        let (value, footer) = dump.split_at(dump.len() - FOOTER);
        assert_eq!(
            crc64(&dump[..dump.len() - 8]).to_le_bytes(),
            footer[2..],
            "the checksum is made otherwise"
        );
        Payload {
            value: value.to_vec(),
            version: [footer[0], footer[1]],
        }
    }

    /// The same with another value.
    pub fn with(&self, value: &[u8]) -> Vec<u8> {
        let mut bytes = [value, &self.version].concat();
        let crc = crc64(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// A short string: its length stands in one byte.
    pub fn with_content(&self, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("short");
        assert!(length < 64, "longer lengths have another form");
        let value = [&self.value[..HEADER], &[STRING, length], content, &[END]].concat();
        self.with(&value)
    }

    /// The module's own bytes, if short.
    pub fn content(&self) -> &[u8] {
        let body = &self.value[HEADER..];
        assert_eq!(body[0], STRING);
        assert_eq!(usize::from(body[1]), body.len() - 3, "a short string");
        &body[2..body.len() - 1]
    }
}

/// Opcodes within a module's value.
const STRING: u8 = 5;
const END: u8 = 0;

/// CRC-64 (Jones), bit by bit: both directions reflected, nothing inverted.
pub fn crc64(bytes: &[u8]) -> u64 {
    // The polynomial 0xad93d23594c935a9 with its bits reversed.
    const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            }
        })
    })
}
