//! Links in paths, followed as the kernel would.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;

use super::answers::{Answer, Trail};
use super::text::path_of;

/// Maximum number of links followed for a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// Follows `path` as the kernel would, with the folder `root` as `/`, and collects its links. `..`
/// stops at the root. Before a call, `note` receives the state so far, as if the rest held no
/// links.
pub(super) fn trail(root: &Path, path: &Path, mut note: impl FnMut(&Trail)) -> Answer<Trail> {
    let mut rest: Vec<OsString> = reversed(path).collect();
    let top = PathBuf::from("/");
    let mut trail = Trail { real: top.clone(), links: Vec::new(), there: top };
    let mut missing = false;
    while let Some(name) = rest.pop() {
        if name == ".." {
            trail.real.pop();
            if !missing {
                trail.there.clone_from(&trail.real);
            }
            continue;
        }
        trail.real.push(&name);
        if missing {
            continue;
        }
        note(&Trail { real: joined(&trail.real, &rest), ..trail.clone() });
        let at = root.join(trail.real.strip_prefix("/").unwrap_or(&trail.real));
        match link(&at) {
            Ok(target) => {
                if trail.links.len() == LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                trail.links.push((trail.real.clone(), target.clone()));
                if target.is_absolute() {
                    trail.real = PathBuf::from("/");
                } else {
                    trail.real.pop();
                }
                trail.there.clone_from(&trail.real);
                rest.extend(reversed(&target));
            }
            Err(Errno::INVAL) => trail.there.clone_from(&trail.real),
            Err(Errno::NOENT) => missing = true,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(trail)
}

/// The target of a link; [`Errno::INVAL`] if `path` is no link.
pub(super) fn link(path: &Path) -> Result<PathBuf, Errno> {
    let target = rustix::fs::readlinkat(CWD, path, Vec::new())?;
    Ok(path_of(target.into_bytes()))
}

/// `path` followed by the components of `rest`, which are in reverse order.
pub(super) fn joined(path: &Path, rest: &[OsString]) -> PathBuf {
    let mut joined = path.to_owned();
    for name in rest.iter().rev() {
        if name == ".." {
            joined.pop();
        } else {
            joined.push(name);
        }
    }
    joined
}

/// The components of a path, the last first.
pub(super) fn reversed(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}
