//! Access rights of a file that replaces another: no user gains access who could not use the old
//! one.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, getxattr, listxattr};
use rustix::io::Errno;

use crate::bench::held;

const ACL: &[u8] = b"system.posix_acl_access";
/// Attributes that describe a file, or control access. Others belong to the old contents.
const KEPT: [&[u8]; 4] = [b"user.", b"system.", b"security.selinux", b"security.SMACK64"];
/// Most bytes of an attribute, and of all names together (xattr(7)).
const ATTRIBUTE_MAX: usize = 64 << 10;

/// The file that is replaced.
#[derive(Debug)]
pub(super) struct Old {
    file: File,
    path: PathBuf,
    pub(super) facts: Metadata,
}

impl Old {
    /// The file or link with this name; `None` if it does not exist.
    pub(super) fn find(path: &Path) -> io::Result<Option<Self>> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => Ok(Some(Self { facts: file.metadata()?, path: path.to_owned(), file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives `new` the owner, group, ACL, attributes and mode of this file, the mode last.
    ///
    /// The system may refuse some of it. Without the old group, the new group and all other users
    /// get only the rights that both the old group and all other users had. Without the old ACL,
    /// only the owner may use the file.
    pub(super) fn give(&self, new: &File) -> io::Result<()> {
        let (user, group) = (self.facts.uid(), self.facts.gid());
        if fchown(new, Some(user), Some(group)).is_err() {
            let _ = fchown(new, None, Some(group));
        }
        let has_group = new.metadata()?.gid() == group;
        // Attributes cannot be read through a descriptor of `O_PATH`.
        let old = held::path(&self.file).unwrap_or_else(|| self.path.clone());
        let mut buffer = vec![0; ATTRIBUTE_MAX];
        // Some file systems have no attributes.
        let names = listxattr(&old, &mut buffer[..]).map_or(Vec::new(), |len| buffer[..len].into());
        let is_kept = |name: &&[u8]| *name != ACL && KEPT.iter().any(|kept| name.starts_with(kept));
        for name in names.split(|byte| *byte == 0).filter(is_kept) {
            if let Ok(len) = getxattr(&old, name, &mut buffer[..]) {
                let _ = fsetxattr(new, name, &buffer[..len], XattrFlags::empty());
            }
        }
        let acl = match getxattr(&old, ACL, &mut buffer[..]) {
            Ok(len) => Some(&buffer[..len]),
            Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => None,
            Err(error) => return Err(error.into()),
        };
        let set = |acl| has_group && fsetxattr(new, ACL, acl, XattrFlags::empty()).is_ok();
        let has_acl = acl.is_some_and(set);
        if !has_acl {
            // The folder may have a default ACL.
            match fremovexattr(new, ACL) {
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mode = self.facts.mode() & 0o777;
        let both = mode >> 3 & mode & 0o7;
        let mode = match (acl, has_group) {
            (Some(_), _) if has_acl => mode,
            // The group's bits are the ACL's mask.
            (Some(_), _) => mode & 0o700,
            (None, true) => mode,
            (None, false) => mode & 0o700 | both << 3 | both,
        };
        new.set_permissions(Permissions::from_mode(mode))
    }
}
