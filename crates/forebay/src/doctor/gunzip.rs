//! Unpacks gzip data (RFC 1951 and 1952), for `/proc/config.gz`, and packs the part that a record
//! keeps.
//!
//! The input may be anything: data that is not gzip, is truncated, or unpacks to more than the
//! bound gives `None`. The checksum is not verified, because the kernel keeps the file in its own
//! memory.

/// Maximum length of a code in bits.
const BITS_MAX: usize = 15;
/// Base and extra bits of lengths, from code 257 on.
const LENGTHS: [(u16, u8); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];
/// The order in which the lengths of the code-length codes are stored.
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Unpacks `packed`; `None` if it would exceed `most` bytes.
pub(super) fn gunzip(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let body = body(packed)?;
    let mut bits = Bits { rest: body, word: 0, count: 0 };
    let mut out = Vec::new();
    loop {
        let is_last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out, most)?,
            1 => {
                let mut lens = [8; 288];
                lens[144..256].fill(9);
                lens[256..280].fill(7);
                block(&mut bits, &mut out, most, &Codes::new(&lens), &Codes::new(&[5; 30]))?;
            }
            2 => {
                let (lengths, distances) = tables(&mut bits)?;
                block(&mut bits, &mut out, most, &lengths, &distances)?;
            }
            _ => return None,
        }
        if is_last {
            return Some(out);
        }
    }
}

/// Packs `bytes` as gzip without compression; truncates them to one block.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let bytes = &bytes[..usize::from(len)];
    // No name, no time, unknown system; then one block, final and stored.
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    packed.extend_from_slice(&len.to_le_bytes());
    packed.extend_from_slice(&(!len).to_le_bytes());
    packed.extend_from_slice(bytes);
    packed.extend_from_slice(&sum(bytes).to_le_bytes());
    packed.extend_from_slice(&u32::from(len).to_le_bytes());
    packed
}

/// The CRC-32 of RFC 1952, section 8.
fn sum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 }
        })
    })
}

/// The data after the header, whose flags say which fields it has.
fn body(packed: &[u8]) -> Option<&[u8]> {
    let (head, mut rest) = packed.split_at_checked(10)?;
    let [0x1f, 0x8b, 8, flags, ..] = head else { return None };
    if flags & 4 != 0 {
        let (len, after) = rest.split_at_checked(2)?;
        rest = after.get(usize::from(u16::from_le_bytes([len[0], len[1]]))..)?;
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            rest = &rest[rest.iter().position(|&byte| byte == 0)? + 1..];
        }
    }
    rest.get(if flags & 2 != 0 { 2 } else { 0 }..)
}

/// A bit reader, lowest bit of each byte first.
struct Bits<'a> {
    rest: &'a [u8],
    word: u32,
    count: u32,
}

impl Bits<'_> {
    fn take(&mut self, count: u32) -> Option<u32> {
        while self.count < count {
            let (&first, rest) = self.rest.split_first()?;
            self.word |= u32::from(first) << self.count;
            self.count += 8;
            self.rest = rest;
        }
        let taken = self.word & ((1 << count) - 1);
        self.word >>= count;
        self.count -= count;
        Some(taken)
    }
}

/// A Huffman code: the number of codes of each length, and their symbols in order.
struct Codes {
    counts: [u16; BITS_MAX + 1],
    symbols: Vec<u16>,
}

impl Codes {
    fn new(lens: &[u8]) -> Self {
        let mut counts = [0; BITS_MAX + 1];
        for &len in lens {
            counts[usize::from(len)] += 1;
        }
        let mut symbols = Vec::with_capacity(lens.len());
        for wanted in 1..=BITS_MAX {
            let those = lens.iter().enumerate().filter(|(_, len)| usize::from(**len) == wanted);
            symbols.extend(those.filter_map(|(symbol, _)| u16::try_from(symbol).ok()));
        }
        Self { counts, symbols }
    }

    fn next(&self, bits: &mut Bits<'_>) -> Option<u16> {
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_usize);
        for &count in &self.counts[1..] {
            code |= bits.take(1)?;
            let count = u32::from(count);
            if let Some(behind) = code.checked_sub(first)
                && behind < count
            {
                return self.symbols.get(index + behind as usize).copied();
            }
            index += count as usize;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

fn stored(bits: &mut Bits<'_>, out: &mut Vec<u8>, most: usize) -> Option<()> {
    // The rest of the byte is unused, and no whole byte is buffered.
    (bits.word, bits.count) = (0, 0);
    let (head, rest) = bits.rest.split_at_checked(4)?;
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let (bytes, rest) = rest.split_at_checked(len)?;
    bits.rest = rest;
    out.extend_from_slice(bytes);
    (out.len() <= most).then_some(())
}

/// Reads the Huffman codes of a dynamic block.
fn tables(bits: &mut Bits<'_>) -> Option<(Codes, Codes)> {
    let lengths = bits.take(5)? as usize + 257;
    let distances = bits.take(5)? as usize + 1;
    let count = bits.take(4)? as usize + 4;
    let mut own = [0; 19];
    for &at in &ORDER[..count] {
        own[at] = u8::try_from(bits.take(3)?).ok()?;
    }
    let own = Codes::new(&own);
    let mut lens: Vec<u8> = Vec::with_capacity(lengths + distances);
    while lens.len() < lengths + distances {
        let (len, times) = match own.next(bits)? {
            16 => (*lens.last()?, bits.take(2)? + 3),
            17 => (0, bits.take(3)? + 3),
            18 => (0, bits.take(7)? + 11),
            len => (u8::try_from(len).ok()?, 1),
        };
        lens.resize(lens.len() + times as usize, len);
    }
    let (lengths, rest) = lens.split_at(lengths);
    Some((Codes::new(lengths), Codes::new(rest.get(..distances)?)))
}

fn block(
    bits: &mut Bits<'_>,
    out: &mut Vec<u8>,
    most: usize,
    lengths: &Codes,
    distances: &Codes,
) -> Option<()> {
    loop {
        match lengths.next(bits)? {
            256 => return Some(()),
            byte @ 0..=255 => out.push(u8::try_from(byte).ok()?),
            code => {
                let (base, extra) = *LENGTHS.get(usize::from(code) - 257)?;
                let len = usize::from(base) + bits.take(extra.into())? as usize;
                let code = u32::from(distances.next(bits)?);
                let extra = (code / 2).saturating_sub(1);
                let base = if code < 4 { code + 1 } else { ((2 + code % 2) << extra) + 1 };
                let back = if code < 30 { base + bits.take(extra)? } else { return None };
                let from = out.len().checked_sub(back as usize)?;
                for at in from..from + len {
                    out.push(out[at]);
                }
            }
        }
        if out.len() > most {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Dynamic codes, as packed by Python's zlib 1.3.
    const DYNAMIC: &[u8] = &[
        31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 237, 146, 33, 14, 128, 48, 16, 4, 61, 175, 161, 61, 10,
        69, 160, 72, 32, 53, 45, 2, 207, 59, 248, 61, 154, 204, 138, 19, 72, 236, 164, 123, 221,
        189, 219, 181, 213, 173, 236, 87, 59, 206, 210, 234, 213, 47, 119, 183, 190, 72, 0, 25, 64,
        102, 170, 70, 160, 152, 128, 140, 175, 50, 117, 70, 7, 194, 38, 133, 70, 91, 145, 105, 132,
        171, 72, 157, 248, 144, 136, 58, 155, 136, 24, 199, 130, 11, 153, 103, 124, 116, 25, 237,
        61, 161, 147, 103, 125, 98, 201, 226, 20, 226, 96, 226, 172, 217, 83, 16, 81, 35, 81, 182,
        217, 209, 90, 134, 249, 219, 255, 125, 251, 31, 66, 242, 65, 150, 96, 4, 0, 0,
    ];
    /// Fixed codes, and a name in the header.
    const FIXED: &[u8] = &[
        31, 139, 8, 8, 0, 0, 0, 0, 2, 3, 99, 111, 110, 102, 105, 103, 0, 115, 246, 247, 115, 243,
        116, 143, 15, 112, 246, 140, 15, 48, 10, 112, 241, 117, 180, 173, 228, 114, 134, 139, 1,
        57, 0, 10, 247, 43, 61, 33, 0, 0, 0,
    ];
    /// A stored block.
    const STORED: &[u8] = &[
        31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 1, 33, 0, 222, 255, 67, 79, 78, 70, 73, 71, 95, 80, 67,
        73, 95, 80, 50, 80, 68, 77, 65, 61, 121, 10, 67, 79, 78, 70, 73, 71, 95, 80, 67, 73, 61,
        121, 10, 10, 247, 43, 61, 33, 0, 0, 0,
    ];

    #[test]
    fn all_kinds_of_blocks_are_unpacked() {
        let lines = (0..60).map(|n| format!("CONFIG_OPTION_{}=y\n", n * n % 41));
        let text = lines.collect::<String>();
        assert_eq!(gunzip(DYNAMIC, 4096).as_deref(), Some(text.as_bytes()));
        let short = b"CONFIG_PCI_P2PDMA=y\nCONFIG_PCI=y\n".as_slice();
        assert_eq!(gunzip(FIXED, 4096).as_deref(), Some(short));
        assert_eq!(gunzip(STORED, 4096).as_deref(), Some(short));
        assert_eq!(gunzip(DYNAMIC, text.len() - 1), None, "more than the bound");
        assert_eq!(gunzip(DYNAMIC, text.len()).map(|out| out.len()), Some(text.len()));
    }

    #[test]
    fn what_is_packed_is_as_others_pack_it() {
        let short = b"CONFIG_PCI_P2PDMA=y\nCONFIG_PCI=y\n".as_slice();
        let packed = pack(short);
        assert_eq!(packed[10..], STORED[10..], "but for the system's number");
        assert_eq!(gunzip(&packed, 4096).as_deref(), Some(short));
        assert_eq!(gunzip(&pack(&[7; 70_000]), 1 << 20).map(|out| out.len()), Some(65_535));
    }

    #[test]
    fn what_is_cut_or_no_gzip_is_nothing() {
        for len in 0..DYNAMIC.len() - 9 {
            assert_eq!(gunzip(&DYNAMIC[..len], 4096), None, "{len}");
        }
        assert_eq!(gunzip(b"CONFIG_PCI_P2PDMA=y\n", 4096), None);
    }

    proptest! {
        #[test]
        fn nothing_is_too_strange(
            mut packed in proptest::collection::vec(any::<u8>(), 0..200),
            damage in 0..DYNAMIC.len(), with in any::<u8>(), flags in 0_u8..32,
        ) {
            let mut known = DYNAMIC.to_vec();
            known[damage] = with;
            prop_assert!(gunzip(&known, 4096).is_none_or(|out| out.len() <= 4096));
            let head = [0x1f, 0x8b, 8, flags];
            let len = packed.len().min(4);
            packed[..len].copy_from_slice(&head[..len]);
            prop_assert!(gunzip(&packed, 4096).is_none_or(|out| out.len() <= 4096));
        }
    }
}
