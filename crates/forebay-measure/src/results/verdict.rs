//! The route of bytes in a report: for each row the verdict on all of its samples, and the counters
//! around each.

use forebay_evidence::{Missing, Share, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::proof::Proof;
use crate::stats::float;

/// The prefix of the words for direct routes.
const DIRECT: &str = "direct";

/// The verdict on a row's bytes, and its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerdictFacts {
    /// `direct (p2pdma)`, `direct (nvidia-fs)`, `staged`, `cached`, `compat`, `host (drive)`,
    /// `host (page cache)`, `mixed`, `unproven` or `contradictory`.
    pub word: String,
    /// The word with the shares of a mix.
    pub text: String,
    /// The routes, most bytes first; empty if nothing is proven.
    pub shares: Vec<ShareFacts>,
    /// True if host memory simulated the GPU.
    pub simulated: bool,
    /// Its evidence, of the first sample.
    pub grounds: Vec<String>,
    /// The missing evidence, and how to get it.
    #[cfg_attr(test, schemars(with = "Vec<std::collections::BTreeMap<String, String>>"))]
    pub missing: Vec<Missing>,
    /// Contradictory evidence.
    pub contradictions: Vec<String>,
    /// Evidence that another process may have caused.
    pub doubts: Vec<String>,
    /// The method's own report, of the first sample, and of its reads if it wrote as well.
    pub claim: Value,
}

/// The share of one route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareFacts {
    /// The route, as in `word`.
    pub route: String,
    /// Of all bytes, from 0 to 1.
    pub share: f64,
}

impl VerdictFacts {
    /// The verdict on all samples together, or on the reads and writes of one, weighted by bytes;
    /// `None` if there are none.
    #[must_use]
    pub fn of(proofs: &[Proof]) -> Option<Self> {
        let one = |proof: &Proof| (proof.verdict.clone(), proof.claim.bytes);
        let all: Vec<(Verdict, u64)> = proofs.iter().map(one).collect();
        let verdict = Verdict::together(&all)?;
        let share =
            |share: &Share| ShareFacts { route: share.way.name().into(), share: share.share };
        Some(Self {
            word: verdict.word().into(),
            text: verdict.to_string(),
            shares: verdict.shares.iter().map(share).collect(),
            simulated: verdict.simulated,
            grounds: verdict.grounds,
            missing: verdict.missing,
            contradictions: verdict.contradictions,
            doubts: verdict.doubts,
            claim: proofs.first().map_or(Value::Null, |proof| proof.claim.to_json()),
        })
    }

    /// The verdict on the bytes of several ranks, as good as the worst; `None` if there are none.
    #[must_use]
    pub fn together(all: &[(&Self, u64)]) -> Option<Self> {
        let grade = |word: &str| ["unproven", "contradictory"].iter().position(|it| *it == word);
        let (worst, _) = all.iter().max_by_key(|(one, _)| grade(&one.word))?;
        let mut sum = (*worst).clone();
        if grade(&sum.word).is_some() || all.iter().all(|(one, _)| one.text == sum.text) {
            return Some(sum);
        }
        let bytes = float(all.iter().map(|(_, bytes)| bytes).sum::<u64>().max(1));
        sum.shares.clear();
        for (share, own) in
            all.iter().flat_map(|(one, own)| one.shares.iter().map(move |it| (it, own)))
        {
            let part = share.share * float(*own) / bytes;
            match sum.shares.iter_mut().find(|known| known.route == share.route) {
                Some(known) => known.share += part,
                None => sum.shares.push(ShareFacts { share: part, ..share.clone() }),
            }
        }
        sum.shares.sort_by(|a, b| b.share.total_cmp(&a.share));
        let shares = sum.shares.iter().map(|it| format!("{:.0} % {}", 100.0 * it.share, it.route));
        (sum.word, sum.text) =
            ("mixed".into(), format!("mixed {}", shares.collect::<Vec<_>>().join(" / ")));
        Some(sum)
    }

    /// Whether all bytes took the direct route between storage and GPU.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.word.starts_with(DIRECT)
    }

    /// The most serious note that a reader needs next to the verdict.
    pub fn note(&self) -> Option<&str> {
        let missing = self.missing.first().map(|missing| &missing.why);
        let note = self.contradictions.first().or(missing).or(self.doubts.first());
        note.map(String::as_str)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay::{Direction, Route};
    use forebay_evidence::{Claim, Evidence, Memory, verdict as judged};

    use super::*;
    use crate::results::Cache;

    /// The verdict on a method that read through the page cache, or with O_DIRECT.
    pub(crate) fn verdict(cache: Cache) -> VerdictFacts {
        let (word, doubts) = match cache {
            Cache::Cold => ("staged", vec!["others used it as well".to_owned()]),
            Cache::Warm => ("cached", Vec::new()),
        };
        VerdictFacts {
            word: word.into(),
            text: word.into(),
            shares: vec![ShareFacts { route: word.into(), share: 1.0 }],
            simulated: false,
            grounds: vec!["0 B came from storage".into()],
            missing: Vec::new(),
            contradictions: Vec::new(),
            doubts,
            claim: Value::Null,
        }
    }

    #[test]
    fn a_verdict_is_read_back_whole() {
        let mut claim = Claim::silent(Direction::Read, 1 << 30, Memory::Gpu);
        claim.routes.push((Route::Direct, 1 << 30));
        let evidence = Evidence::default();
        let verdict = judged(&evidence, &claim);
        let missing = verdict.missing[0].clone();
        let proofs = [Proof { claim, evidence, verdict }];
        let facts = VerdictFacts::of(&proofs).unwrap();
        assert_eq!((facts.word.as_str(), facts.text.as_str()), ("unproven", "unproven"));
        let Missing { why, remedy } = &facts.missing[0];
        assert_eq!((why, remedy), (&missing.why, &missing.remedy));
        assert!(facts.note().unwrap().starts_with("cuFile's own counters"), "{facts:?}");
        assert_eq!(facts.claim["routes"][0]["route"], "direct");
        assert_eq!(VerdictFacts::of(&[]), None);
    }

    #[test]
    fn the_verdict_of_ranks_is_that_of_the_worst() {
        let (staged, cached) = (verdict(Cache::Cold), verdict(Cache::Warm));
        let text = |all: &[(&VerdictFacts, u64)]| VerdictFacts::together(all).unwrap().text;
        assert_eq!(text(&[(&staged, 1), (&staged, 2)]), "staged");
        assert_eq!(text(&[(&cached, 1), (&staged, 3)]), "mixed 75 % staged / 25 % cached");
        let unproven = VerdictFacts { word: "unproven".into(), text: "unproven".into(), ..staged };
        assert_eq!(text(&[(&cached, 1), (&unproven, 0)]), "unproven");
        assert_eq!(VerdictFacts::together(&[]), None);
    }
}
