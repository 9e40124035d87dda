//! The fenced blocks of a page, and the commands that stand in them. Pure.

/// What stands between two fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Where the first fence stands, from 1 on.
    pub(super) line: usize,
    /// What stands behind that fence.
    words: Vec<String>,
    pub(super) text: String,
}

/// All fenced blocks of a page; one that is not closed is a fault of the page.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => {
                let words = info.split_whitespace().map(Into::into).collect();
                open = Some(Block { line: index + 1, words, text: String::new() });
            }
            (Some(_), Some(block)) => all.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "a block that nothing ends");
    all
}

impl Block {
    /// Whether it is of this kind.
    pub(super) fn is(&self, kind: &str) -> bool {
        self.words.first().is_some_and(|word| word == kind)
    }

    /// Whether it is marked by this word.
    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// Another program that it runs.
    pub(super) fn with(&self) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix("with-"))
    }

    /// What a machine needs to run it.
    pub(super) fn needs(&self) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix("needs-"))
    }

    /// The exit codes that it may end with.
    pub(super) fn exits(&self) -> Vec<i32> {
        let reported = self.words.iter().filter_map(|word| word.strip_prefix("exit-"));
        let reported: Vec<i32> = reported.map(|code| code.parse().expect("a number")).collect();
        if reported.is_empty() { vec![0] } else { reported }
    }

    /// Its lines that call `forebay`, each with those that continue it.
    pub(super) fn commands(&self) -> Vec<String> {
        let whole = self.text.replace("\\\n", " ");
        let mut commands: Vec<String> = Vec::new();
        let mut is_open = false;
        for line in whole.lines() {
            // A word in quotes may go on for several lines.
            let continues = is_open;
            is_open ^= line.matches('\'').count() % 2 == 1;
            let line = line.trim_start();
            match commands.last_mut() {
                Some(last) if continues => *last = format!("{last}\n{line}"),
                _ if line.split(' ').find(|word| !word.contains('=')) == Some("forebay") => {
                    commands.push(line.into());
                }
                _ => {}
            }
        }
        commands
    }
}

#[test]
fn blocks_have_kinds_needs_and_codes() {
    let page = "# A\n```sh exit-0 exit-1\nforebay a \\\n  b\nls\n```\ntext\n```sh needs-gpu\n\
                forebay c\n```\n";
    let found = blocks(page);
    assert_eq!(found.len(), 2);
    assert!(found[0].is("sh") && found[0].needs().is_none() && found[0].line == 2);
    assert_eq!(found[0].exits(), [0, 1]);
    assert_eq!(found[0].commands(), ["forebay a    b"]);
    assert_eq!((found[1].needs(), found[1].exits()), (Some("gpu"), vec![0]));
    assert_eq!(found[1].commands(), ["forebay c"]);
    let quoted = "```sh\nforebay a 'b\n c'\nforebay d\n```\n";
    assert_eq!(blocks(quoted)[0].commands(), ["forebay a 'b\nc'", "forebay d"]);
}
