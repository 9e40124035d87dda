//! Behaviours of the simulated cuFile of `forebay-cufile`.

/// Behaviour of a simulated cuFile. Some behaviours depend on the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimulatedCuFile {
    /// Transfers directly to the GPU and reports peer-to-peer DMA.
    P2pDma,
    /// Transfers directly to the GPU and reports nvidia-fs.
    NvidiaFs,
    /// Refuses every file.
    Refuse,
    /// Completes some requests with fewer bytes.
    Short,
    /// Fails after some requests.
    Fail,
    /// Reports bytes as transferred that were not.
    Lie,
    /// Stops responding after some requests.
    Hang,
    /// Never returns from registering a file.
    HangOpen,
    /// Never returns from deregistering a file.
    HangClose,
}

impl SimulatedCuFile {
    /// Every behaviour, with its name.
    pub const ALL: [(&'static str, Self); 9] = [
        ("p2pdma", Self::P2pDma),
        ("nvidia-fs", Self::NvidiaFs),
        ("refuse", Self::Refuse),
        ("short", Self::Short),
        ("fail", Self::Fail),
        ("lie", Self::Lie),
        ("hang", Self::Hang),
        ("hang-open", Self::HangOpen),
        ("hang-close", Self::HangClose),
    ];

    /// The name of this behaviour.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, play)| *play == self).map_or("", |(name, _)| name)
    }
}
