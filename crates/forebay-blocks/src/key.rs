//! The hash by which a block is found.

/// The 192-bit hash of a block's name, and of the namespace of its store. The hash is BLAKE3, so
/// that names chosen by a stranger do not collide either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) [u64; 3]);

/// The part of a key by which the index finds it.
pub(crate) type Name = [u64; 2];

impl Key {
    pub(crate) fn name(&self) -> Name {
        [self.0[0], self.0[1]]
    }
}

/// Makes the keys of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct Namespace([u8; 32]);

impl Namespace {
    pub(crate) fn new(name: &[u8]) -> Self {
        Self(*blake3::hash(name).as_bytes())
    }

    pub(crate) fn key(&self, name: &[u8]) -> Key {
        let hash = blake3::keyed_hash(&self.0, name);
        let (words, _) = hash.as_bytes().as_chunks();
        Key([0, 1, 2].map(|word: usize| u64::from_le_bytes(words[word])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_names_do_not_run_together() {
        let key =
            |namespace: &str, name: &str| Namespace::new(namespace.as_bytes()).key(name.as_bytes());
        assert_eq!(key("llama", "a"), key("llama", "a"));
        assert_ne!(key("llama", "a"), key("llam", "aa"));
        assert_ne!(key("", "a"), key("a", ""));
    }
}
