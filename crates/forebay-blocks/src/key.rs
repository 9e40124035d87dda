//! The hash by which a block is found.

/// The 192-bit hash of a block's name, and of the namespace of its store. The hash is BLAKE3, so
/// that names chosen by a stranger do not collide either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) [u8; Key::LEN]);

impl Key {
    pub(crate) const LEN: usize = 24;

    /// The part by which the index finds it.
    pub(crate) fn name(&self) -> &[u8; 16] {
        self.0.first_chunk().expect("24 bytes")
    }

    /// A key of the index alone.
    pub(crate) fn of_name(name: [u8; 16]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&name);
        Self(bytes)
    }

    /// Evenly distributed bits; different for each `part` (0 to 2).
    pub(crate) fn bits(&self, part: usize) -> u64 {
        let bytes = self.0[part * 8..][..8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    }
}

/// Makes the keys of one namespace.
#[derive(Debug, Clone)]
pub(crate) struct Namespace([u8; 32]);

impl Namespace {
    pub(crate) fn new(name: &[u8]) -> Self {
        Self(*blake3::hash(name).as_bytes())
    }

    pub(crate) fn key(&self, name: &[u8]) -> Key {
        let hash = blake3::keyed_hash(&self.0, name);
        Key(hash.as_bytes()[..Key::LEN].try_into().expect("24 of 32 bytes"))
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
