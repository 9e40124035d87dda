//! Loop devices (`loop(4)`): block devices backed by a file.

use super::answers::{LoopFile, Refusal, Stat};
use super::map::{Layer, LayerKind};
use super::resolve::Resolve;
use super::system::{Absent, Folder};
use super::text::{device_text, path_of, shown};
use super::volume::Span;

/// Suffix that the kernel adds to the name of a deleted file (`d_path`).
const DELETED: &[u8] = b" (deleted)";

impl Resolve<'_> {
    pub(super) fn loop_device(&mut self, folder: &Folder, layer: &mut Layer) -> Span {
        layer.kind = LayerKind::Loop;
        let number = folder.device_number();
        let bytes = match attached(folder) {
            Ok(bytes) => bytes,
            Err(reason) => return self.unknown_drive(layer, number, &reason),
        };
        layer.say_if("direct_io", folder.flag("loop/dio"));
        layer.say_if("offset_bytes", folder.number("loop/offset").filter(|&offset| offset > 0));
        let path = path_of(bytes.clone());
        layer.say("backing_file", shown(&path));
        let stat = self.system.stat(&path);
        // An image that did not answer is not probed again through the device.
        let reported = match stat {
            Err(Refusal::Silent) => None,
            _ => self.system.loop_file(&folder.name()).ok(),
        };
        let mut child = Layer::new(LayerKind::BackingFile, shown(&path));
        let span = match (&stat, reported) {
            // The path is from the time of attachment; a newer file may be there now.
            (Ok(stat), Some(file)) if file_of(stat) != file => {
                let reason = "a newer file replaced the attached file under its name";
                self.unknown_drive(&mut child, number, reason)
            }
            (Ok(stat), reported) => {
                child.say("found_by", if reported.is_some() { "device and inode" } else { "name" });
                self.file(&mut child, &path, Some(stat))
            }
            (Err(refusal), reported) if bytes.ends_with(DELETED) => {
                child.say("deleted", true);
                let reason = format!("the attached file was deleted ({refusal})");
                match reported {
                    // The device number of the file system may still identify a drive.
                    Some(file) if rustix::fs::major(file.dev) != 0 => {
                        self.block(&mut child, file.dev)
                    }
                    _ => self.unknown_drive(&mut child, number, &reason),
                }
            }
            (Err(refusal @ (Refusal::NotRecorded | Refusal::Silent)), _) if path.is_absolute() => {
                child.say("found_by", "name");
                if *refusal == Refusal::Silent {
                    child.unknown("answers", refusal);
                }
                self.file(&mut child, &path, None)
            }
            (Err(refusal), _) => {
                let reason = format!("the attached file cannot be looked at: {refusal}");
                self.unknown_drive(&mut child, number, &reason)
            }
        };
        layer.children.push(child);
        let LoopFile { dev, ino } =
            reported.or(stat.ok().as_ref().map(file_of)).unwrap_or_default();
        span.owned(format!("loop:{}:{dev}:{ino}", device_text(number)))
    }
}

fn file_of(stat: &Stat) -> LoopFile {
    LoopFile { dev: stat.device, ino: stat.inode }
}

/// The path of the attached file, or the reason why it is missing.
fn attached(folder: &Folder) -> Result<Vec<u8>, String> {
    let bytes = folder.bytes("loop/backing_file").map_err(|absent| match absent {
        Absent::Missing => "no file is attached".to_owned(),
        absent => format!("`loop/backing_file`: {absent}"),
    })?;
    Ok(bytes.strip_suffix(b"\n").map_or_else(|| bytes.clone(), <[u8]>::to_vec))
}
