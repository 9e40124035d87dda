//! Power of the server as measured by its management controller, read by `ipmitool` or FreeIPMI's
//! `ipmi-dcmi`.
//!
//! They are tried once, and only if the kernel has a device for IPMI: otherwise one of them would
//! probe the hardware for a controller. A controller answers with an average over a time that it
//! chooses, in whole watts; many update it once a second or less often.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_topology::System;

use super::command::{self, LIMIT};
use super::hwmon::shortened;
use super::result::{Absent, Part};
use super::sensor::{Channel, Found, Kind, SERVER_WATTS_MAX, Sensor, Value, watts};

const NAME: &str = "server (ipmi)";
/// The devices of a kernel with a driver for the controller.
const DEVICES: [&str; 3] = ["dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0"];
/// Programs and their arguments.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("ipmitool", &["dcmi", "power", "reading"]),
    ("ipmi-dcmi", &["--get-system-power-statistics"]),
];

/// A program that has answered once.
struct Ipmi {
    program: PathBuf,
    arguments: &'static [&'static str],
    stop: Arc<AtomicBool>,
}

/// Finds a program that answers, in `folder` or in the system's program path.
pub(super) fn find(
    system: &System,
    folder: Option<&PathBuf>,
    stop: &Arc<AtomicBool>,
    found: &mut Found,
) {
    if !DEVICES.iter().any(|device| system.has(device)) {
        let why = "the kernel has no `/dev/ipmi0`";
        let remedy = "on a server with a controller, load the modules `ipmi_si` and `ipmi_devintf`";
        found.absent.push(Absent::new(NAME, why).remedy(remedy));
        return;
    }
    let mut refused = Vec::new();
    for (name, arguments) in PROGRAMS {
        let program = folder.map_or_else(|| name.into(), |folder| folder.join(name));
        let ipmi = Ipmi { program, arguments, stop: Arc::clone(stop) };
        match ipmi.watts() {
            Ok(_) => return found.slow.push(Box::new(ipmi)),
            Err(why) => refused.push(format!("`{}`: {why}", ipmi.line())),
        }
    }
    let remedy = "install `ipmitool`, and run as root";
    found.absent.push(Absent::silent(NAME, refused.join("; ")).remedy(remedy));
}

impl Ipmi {
    fn line(&self) -> String {
        let name = self.program.file_name().unwrap_or_default().display();
        format!("{name} {}", self.arguments.join(" "))
    }

    fn watts(&self) -> Result<f64, String> {
        let mut program = Command::new(&self.program);
        // Its output is parsed.
        let program = program.args(self.arguments).env("LC_ALL", "C");
        watts(parse(&command::run(program, LIMIT, &self.stop)?)?, SERVER_WATTS_MAX)
    }
}

impl Sensor for Ipmi {
    fn channels(&self) -> Vec<Channel> {
        let kind = Kind::Power { part: Part::Server, how: format!("`{}`", self.line()) };
        vec![Channel { name: NAME.into(), kind }]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        vec![self.watts().map(Value::Number)]
    }
}

/// The current power in either program's output: lines of a name, a colon and a value. Both have
/// further lines for the minimum, the maximum and the average over some time.
fn parse(text: &str) -> Result<f64, String> {
    let value = |names: [&str; 2]| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let is_one = |name: &str| names.iter().any(|one| name.trim().eq_ignore_ascii_case(one));
        fields.find(|(name, _)| is_one(name)).map(|(_, value)| value.trim())
    };
    let state = value(["Power reading state is", "Power Measurement"]);
    if let Some(state) = state.filter(|state| !["activated", "Active"].contains(state)) {
        return Err(format!("the controller's power measurement is `{}`", shortened(state)));
    }
    let power = value(["Instantaneous power reading", "Current Power"]);
    let power = power.ok_or_else(|| {
        let first = text.lines().next().unwrap_or_default();
        format!("its output has no power: `{}`", shortened(first))
    })?;
    let number = power.split_whitespace().next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("its output has no power: `{}`", shortened(power)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::tree::Tree;
    use proptest::prelude::*;

    const IPMITOOL: &str = "\n    Instantaneous power reading:                   220 Watts\n    \
        Minimum during sampling period:                 18 Watts\n    \
        IPMI timestamp:                           Thu Feb 11 20:14:11 2016\n    \
        Sampling period:                          00000001 Seconds.\n    \
        Power reading state is:                   activated\n\n";
    const FREEIPMI: &str = "Current Power                        : 76 Watts\n\
        Minimum Power over sampling duration : 4 watts\n\
        Time Stamp                           : 10/27/2010 - 22:16:54\n\
        Power Measurement                    : Active\n";

    fn found(tree: &Tree, folder: &PathBuf) -> Found {
        let mut found = Found::default();
        find(&tree.system(), Some(folder), &Arc::new(AtomicBool::new(false)), &mut found);
        found
    }

    #[test]
    fn both_programs_words_are_read() {
        assert_eq!(parse(IPMITOOL), Ok(220.0));
        assert_eq!(parse(FREEIPMI), Ok(76.0));
        let off = IPMITOOL.replace("activated", "deactivated").replace("220", "0");
        assert_eq!(parse(&off).unwrap_err(), "the controller's power measurement is `deactivated`");
        let off = FREEIPMI.replace("Active", "Not Available");
        assert!(parse(&off).unwrap_err().contains("`Not Available`"));
        assert!(parse("Current Power : lots").unwrap_err().ends_with("no power: `lots`"));
        assert!(parse("DCMI request failed because: Invalid command (c1)\n").is_err());
        assert_eq!(parse("").unwrap_err(), "its output has no power: ``");
    }

    #[test]
    fn the_first_program_that_answers_serves() {
        let tree = Tree::new();
        tree.file("dev/ipmi0", "");
        let folder = tree.program("ipmi-dcmi", "echo \"$1: $LC_ALL\"; echo 'Current Power : 76 W'");
        let mut one = found(&tree, &folder);
        assert_eq!(one.slow[0].read(true), [Ok(Value::Number(76.0))]);
        let how = format!("{:?}", one.slow[0].channels());
        assert!(how.contains("`ipmi-dcmi --get-system-power-statistics`"), "{how}");
        let line = "[ \"$*\" = 'dcmi power reading' ] && echo 'Instantaneous power reading: 220 W'";
        tree.program("ipmitool", line);
        let mut both = found(&tree, &folder);
        assert_eq!((both.slow.len(), both.absent.len()), (1, 0));
        assert_eq!(both.slow[0].read(true), [Ok(Value::Number(220.0))]);
        tree.program("ipmitool", "echo 'Instantaneous power reading: 9999999 W'");
        assert!(both.slow[0].read(true).remove(0).unwrap_err().contains("9999999 W is not"));
    }

    #[test]
    fn without_device_or_program_it_is_absent_with_the_reason() {
        let tree = Tree::new();
        // It would answer if it were run.
        let folder = tree.program("ipmitool", "echo 'Instantaneous power reading: 220 W'");
        let none = found(&tree, &folder).absent.remove(0);
        assert!(none.why.contains("/dev/ipmi0") && none.remedy.unwrap().contains("ipmi_devintf"));
        tree.file("dev/ipmi0", "");
        tree.program("ipmitool", "echo 'Could not open device' >&2; exit 1");
        let none = found(&tree, &folder).absent.remove(0);
        assert_eq!(none.name, NAME);
        let failed = "`ipmitool dcmi power reading`: it failed: Could not open device; `ipmi-dcmi";
        assert!(none.why.starts_with(failed), "{none:?}");
        assert!(none.why.contains("cannot be started: No such file"), "{none:?}");
        assert_eq!(none.remedy.unwrap(), "install `ipmitool`, and run as root");
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "(Current Power ?:|[ -~é\n:]){0,30}") {
            let _ = parse(&text);
        }
    }
}
