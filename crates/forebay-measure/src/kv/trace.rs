//! The turns of conversations with a language model, as blocks of its KV cache. Pure: equal seeds
//! give equal turns.
//!
//! A prompt is one of a few prefixes that many conversations share, all earlier turns of its
//! conversation, and new text. Lengths are those of the trace of conversations that was published
//! with Mooncake (Qin et al., FAST '25): prompts of 12,035 tokens and answers of 343 on average,
//! and 40 % of the tokens of prompts were there before.

use crate::memory::whole;
use crate::workload::pattern::random_below;

/// Prefixes that conversations share, and the tokens of each.
const PREFIXES: u64 = 4;
const PREFIX: u64 = 512;
/// Turns of a conversation, all equally likely.
const TURNS: [u8; 4] = [1, 1, 2, 3];
/// Least and most tokens that a turn adds, all equally likely.
const ADDED: (u64, u64) = (1_210, 13_210);
/// Tokens of an answer.
const ANSWER: u64 = 343;
/// Mean tokens of a prompt.
pub(super) const PROMPT: u64 = 12_035;

/// The endless turns of many conversations.
#[derive(Debug)]
pub struct Trace {
    sessions: Vec<Session>,
    begun: u64,
    /// The state of the random generator.
    state: u64,
    /// Tokens of a block.
    page: u64,
    /// Lengths are divided by this.
    shorter: u64,
}

#[derive(Debug)]
struct Session {
    number: u64,
    prefix: u64,
    tokens: u64,
    turns: u8,
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The names of its blocks in order, those of the prompt first. A last block that is not full
    /// is left out.
    pub blocks: Vec<u64>,
    /// How many of them are the prompt's.
    pub prompt: usize,
}

impl Trace {
    /// The turns of `sessions` conversations at the same time, with lengths divided by `shorter`.
    #[must_use]
    pub fn new(sessions: u64, page: u64, shorter: u64, seed: u64) -> Self {
        let (page, shorter) = (page.max(1), shorter.max(1));
        let mut trace = Self { sessions: Vec::new(), begun: 0, state: seed, page, shorter };
        trace.sessions = (0..sessions.max(1)).map(|_| trace.begin()).collect();
        trace
    }

    fn below(&mut self, end: u64) -> u64 {
        random_below(&mut self.state, end)
    }

    fn begin(&mut self) -> Session {
        self.begun += 1;
        let prefix = self.below(PREFIXES);
        let turns = TURNS[whole(self.below(TURNS.len() as u64))];
        Session { number: self.begun, prefix, tokens: PREFIX / self.shorter, turns }
    }
}

impl Iterator for Trace {
    type Item = Turn;

    /// The next turn, of any conversation; never `None`.
    fn next(&mut self) -> Option<Turn> {
        let index = whole(self.below(self.sessions.len() as u64));
        let added = (ADDED.0 + self.below(ADDED.1 - ADDED.0)) / self.shorter;
        let (page, shared) = (self.page, PREFIX / self.shorter / self.page);
        let session = &mut self.sessions[index];
        session.tokens += added.max(1);
        let prompt = session.tokens / page;
        session.tokens += ANSWER / self.shorter;
        // Blocks of a prefix belong to no conversation.
        let name = |block| match block < shared {
            true => session.prefix << 32 | block,
            false => (session.number + PREFIXES) << 32 | block,
        };
        let blocks = (0..session.tokens / page).map(name).collect();
        session.turns -= 1;
        if session.turns == 0 {
            self.sessions[index] = self.begin();
        }
        Some(Turn { blocks, prompt: whole(prompt) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MASK: u64 = (1 << 32) - 1;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn lengths_and_repetition_are_those_of_the_published_trace() {
        // Names of one owner follow each other: how many of each were there before.
        let mut known: HashMap<u64, u64> = HashMap::new();
        let (mut prompts, mut again, mut answers) = (0, 0, 0);
        for turn in Trace::new(20, 1, 1, 7).take(4_000) {
            let prompt = &turn.blocks[..turn.prompt];
            prompts += prompt.len();
            answers += turn.blocks.len() - prompt.len();
            let ends = |names: &[u64]| (names[0] & MASK, (names[names.len() - 1] & MASK) + 1);
            for names in prompt.chunk_by(|a, b| a >> 32 == b >> 32) {
                let (first, end) = ends(names);
                let there = known.get(&(names[0] >> 32)).copied().unwrap_or(0);
                again += whole(there.min(end).saturating_sub(first));
            }
            for names in turn.blocks.chunk_by(|a, b| a >> 32 == b >> 32) {
                let there = known.entry(names[0] >> 32).or_default();
                *there = ends(names).1.max(*there);
            }
        }
        let near = |found: usize, of: usize, wanted: f64| {
            let found = found as f64 / of as f64;
            assert!((found / wanted - 1.0).abs() < 0.04, "{found}, not {wanted}");
        };
        near(prompts, 4_000, 12_035.0);
        near(answers, 4_000, 343.0);
        near(again, prompts, 0.40);
    }

    #[test]
    fn a_conversation_repeats_its_blocks_and_shares_only_its_prefix() {
        let turns: Vec<Turn> = Trace::new(3, 16, 4, 1).take(200).collect();
        assert_eq!(turns, Trace::new(3, 16, 4, 1).take(200).collect::<Vec<_>>());
        assert_ne!(turns, Trace::new(3, 16, 4, 2).take(200).collect::<Vec<_>>());
        let shared = whole(PREFIX / 4 / 16);
        for (index, turn) in turns.iter().enumerate() {
            assert!(turn.prompt > shared && turn.blocks.len() >= turn.prompt);
            for other in &turns[..index] {
                let same = turn.blocks.iter().zip(&other.blocks).take_while(|(a, b)| a == b);
                let same = same.count();
                assert!(
                    same == 0
                        || same == shared
                        || same == other.blocks.len().min(turn.blocks.len())
                );
            }
        }
    }
}
