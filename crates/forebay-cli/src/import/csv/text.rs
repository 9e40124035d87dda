//! Separated values: which delimiter, and the fields of each record. Fields may be quoted, as RFC
//! 4180 has it, with line breaks within.

/// Possible field separators, the likeliest first.
const DELIMITERS: [char; 3] = [',', ';', '\t'];
/// Fields of a record at most.
const FIELDS_MAX: usize = 1000;
/// Most bytes of a record, which bounds the effect of an unclosed quote.
const RECORD_MAX: usize = 1 << 20;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// The line that it begins in, from 1 on.
    pub(super) line: u64,
    pub(super) fields: Vec<String>,
}

/// The delimiter of a header: the one that splits it into most fields.
pub(super) fn delimiter(text: &str) -> char {
    let count = |delimiter: char| {
        let first = Records::new(text, delimiter).next();
        first.and_then(Result::ok).map_or(0, |record| record.fields.len())
    };
    let mut best = DELIMITERS[0];
    for other in DELIMITERS {
        if count(other) > count(best) {
            best = other;
        }
    }
    best
}

/// The records of a text, without empty lines.
#[derive(Debug)]
pub(super) struct Records<'a> {
    rest: &'a str,
    delimiter: char,
    line: u64,
}

impl<'a> Records<'a> {
    pub(super) fn new(text: &'a str, delimiter: char) -> Self {
        // Spreadsheets write a byte order mark first.
        Self { rest: text.strip_prefix('\u{feff}').unwrap_or(text), delimiter, line: 1 }
    }

    /// The next record, which ends at a line break outside of quotes.
    fn record(&mut self) -> Result<Vec<String>, String> {
        let (mut fields, mut field) = (Vec::new(), String::new());
        let mut quoted = false;
        let begin = self.line;
        let mut letters = self.rest.char_indices().peekable();
        let mut end = self.rest.len();
        while let Some((at, letter)) = letters.next() {
            if at > RECORD_MAX {
                return Err(format!("line {begin}: a record has more than {RECORD_MAX} bytes"));
            }
            match letter {
                '"' if quoted && letters.peek().is_some_and(|(_, next)| *next == '"') => {
                    letters.next();
                    field.push('"');
                }
                '"' if quoted => quoted = false,
                '"' if field.trim().is_empty() => {
                    field.clear();
                    quoted = true;
                }
                '\n' => {
                    self.line += 1;
                    if !quoted {
                        end = at + 1;
                        break;
                    }
                    field.push(letter);
                }
                letter if letter == self.delimiter && !quoted => {
                    if fields.len() >= FIELDS_MAX {
                        return Err(format!("line {begin}: it has more than {FIELDS_MAX} fields"));
                    }
                    fields.push(std::mem::take(&mut field).trim().to_owned());
                }
                letter => field.push(letter),
            }
        }
        if quoted {
            return Err(format!("line {begin}: a quote is not closed"));
        }
        fields.push(field.trim().to_owned());
        self.rest = &self.rest[end..];
        Ok(fields)
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let line = self.line;
            match self.record() {
                Ok(fields) if fields.iter().all(String::is_empty) => {}
                Ok(fields) => return Some(Ok(Record { line, fields })),
                Err(why) => {
                    self.rest = "";
                    return Some(Err(why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(u64, Vec<String>)> {
        let records = Records::new(text, delimiter(text)).map(Result::unwrap);
        records.map(|record| (record.line, record.fields)).collect()
    }

    fn row(line: u64, fields: &[&str]) -> (u64, Vec<String>) {
        (line, fields.iter().map(|field| (*field).to_owned()).collect())
    }

    #[test]
    fn fields_are_those_of_any_delimiter() {
        for delimiter in DELIMITERS {
            let text = "a,b c,d\r\n1,,3\n\n,,\n4,5,6".replace(',', &delimiter.to_string());
            let rows =
                [row(1, &["a", "b c", "d"]), row(2, &["1", "", "3"]), row(5, &["4", "5", "6"])];
            assert_eq!(all(&text), rows);
        }
    }

    #[test]
    fn a_quoted_field_holds_what_separates() {
        let text = "\u{feff}\"a;b\",\"say \"\"x\"\"\"\n\"two\nlines\",1\n2,in \"the\" middle\n";
        let rows = [
            row(1, &["a;b", "say \"x\""]),
            row(2, &["two\nlines", "1"]),
            row(4, &["2", "in \"the\" middle"]),
        ];
        assert_eq!(all(text), rows);
        let open = Records::new("a,\"b\nc", ',').next().unwrap();
        assert_eq!(open.unwrap_err(), "line 1: a quote is not closed");
        let long = Records::new(&"x".repeat(RECORD_MAX + 2), ',').next().unwrap();
        assert!(long.unwrap_err().contains("bytes"));
        let wide = Records::new(&",".repeat(FIELDS_MAX + 1), ',').next().unwrap();
        assert!(wide.unwrap_err().contains("fields"));
    }

    proptest::proptest! {
        #[test]
        fn what_was_quoted_comes_back(rows in proptest::collection::vec(
            proptest::collection::vec("[a-z,;\"\n ]{1,8}", 1..5), 1..5)) {
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",");
            let text = rows.iter().map(|row| line(row) + "\n").collect::<String>();
            let read = Records::new(&text, ',').map(|record| record.unwrap().fields);
            let kept = |row: &Vec<String>| row.iter().any(|field| !field.trim().is_empty());
            let trimmed = |row: &Vec<String>| -> Vec<String> {
                row.iter().map(|field| field.trim().to_owned()).collect()
            };
            let expected: Vec<_> = rows.iter().filter(|row| kept(row)).map(trimmed).collect();
            proptest::prop_assert_eq!(read.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn no_text_ends_the_command(text: String) {
            Records::new(&text, delimiter(&text)).take(1000).for_each(drop);
        }
    }
}
