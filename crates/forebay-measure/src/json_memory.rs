//! Refuses JSON that would take many times its size in memory, before it is parsed.
//!
//! `[],` is 3 bytes of text and 32 bytes of memory, `{"":0},` 7 and more than 600.

use forebay::units::{MIB, format_size};

/// Most memory of one text. A sweep of 100,000 points, the maximum, uses two thirds of it for the
/// line of its run.
const MEMORY_MAX: u64 = 512 * MIB;

/// Estimates how many bytes the values of a JSON text take in memory. Text that is not JSON gets an
/// estimate too, and the parser refuses it.
///
/// # Errors
/// Together with the `kept` bytes of earlier values this exceeds the limit; the text gives both.
pub fn check(json: &[u8], kept: u64) -> Result<u64, String> {
    let memory = estimate(json);
    if kept + memory > MEMORY_MAX {
        let (size, most) = (format_size(kept + memory), format_size(MEMORY_MAX));
        return Err(format!("its values would take about {size} of memory; the limit is {most}"));
    }
    Ok(memory)
}

fn estimate(json: &[u8]) -> u64 {
    let (mut memory, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        memory += match byte {
            // No string reaches beyond its line.
            b'\n' => {
                (in_string, escaped) = (false, false);
                0
            }
            _ if escaped => {
                escaped = false;
                0
            }
            b'\\' if in_string => {
                escaped = true;
                0
            }
            b'"' => {
                in_string = !in_string;
                16
            }
            _ if in_string => 0,
            // A leaf of a tree with room for 11 members.
            b'{' => 512,
            b':' => 64,
            // A list grows by doubling.
            b'[' | b',' => 64,
            _ => 0,
        };
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Sweep};
    use crate::results::Point;

    #[test]
    fn values_count_and_what_strings_hold_does_not() {
        assert_eq!(estimate(b"[0,[],{\"a\":1}]"), 4 * 64 + 512 + 64 + 32);
        for text in [r#""{[,:""#, r#""{\"[\\""#, "\"\\\n\"\"", r#""a":"#] {
            let colon = if text.ends_with(':') { 64 } else { 0 };
            let quotes = if text.contains('\n') { 48 } else { 32 };
            assert_eq!(estimate(text.as_bytes()), quotes + colon, "{text}");
        }
    }

    #[test]
    fn the_largest_sweep_is_read_and_small_values_are_refused() {
        let mut point = made::samples(&Sweep::default())[0]["point"].clone();
        point["targets"] = vec!["cuda:0"; 8].into();
        let _: Point = serde_json::from_value(point.clone()).unwrap();
        let line = format!("[{}null]", format!("{point},").repeat(100_000));
        check(line.as_bytes(), 0).unwrap();
        let refused = |value: &str, count| check(value.repeat(count).as_bytes(), 0).unwrap_err();
        assert!(refused("0,", 9 << 20).contains("about 576 MiB of memory; the limit is 512 MiB"));
        assert!(refused("{\"\":0},", 1 << 20).contains("of memory"));
    }
}
