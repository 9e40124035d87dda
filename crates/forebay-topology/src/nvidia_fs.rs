//! The kernel module nvidia-fs.

use super::system::{Absent, System};

/// The facts about nvidia-fs that do not change while it is loaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NvidiaFsModule {
    /// Its version; `None` if it is not loaded.
    pub version: Option<String>,
    /// The storage drivers registered with it.
    pub users: Result<Vec<String>, Absent>,
}

impl NvidiaFsModule {
    /// Reads them.
    pub fn read(system: &System) -> Self {
        let version = system.text("sys/module/nvidia_fs/version");
        let version = version.or_else(|_| system.text("proc/driver/nvidia-fs/version"));
        let bare = |text: String| text.strip_prefix("version:").unwrap_or(&text).trim().to_owned();
        let users = system.text("proc/driver/nvidia-fs/modules");
        Self { version: version.ok().map(bare), users: users.map(|text| words(&text)) }
    }
}

/// The words of a text, whatever separates them.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_separated_by_anything() {
        assert_eq!(words("nvme: 1\n rpcrdma,\n"), ["nvme", "1", "rpcrdma"]);
    }
}
