//! Flipped bits. A store with one must say so, or be right all the same; it must never serve a mixture, and
//! never panic.

use crate::disk::Loss;
use crate::explore::{Cut, Failure, How, begin};
use crate::flavour::Flavour;
use crate::life::{STORE, Start};
use crate::random::Random;
use crate::script::{End, Script, Step};
use std::path::Path;

/// How a life ends that begins with damage.
const NOTICED: [&str; 3] = ["check found damage", "not opened", "recovery left damage"];

/// What became of flipped bits.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flips {
    /// Refused, or reported by `check`.
    pub noticed: u64,
    /// Of no consequence.
    pub harmless: u64,
}

/// Lives a script, and flips single bits of what crashes leave of it.
pub fn flips(start: &Start, script: &Script, count: u64, random: &mut Random) -> Result<Flips, Failure> {
    // While truncation is half done, a damaged log may leave a mixture that nothing can tell from a torn tail.
    let keeps_log =
        |step: &&Step| matches!(step, Step::Transaction { .. } | Step::Flush | Step::Resolve | Step::Forget);
    let script = &Script(script.0.iter().filter(keeps_log).take(14).cloned().collect());
    let fail = |why: String| Failure { path: script.to_string(), why };
    // A store with undecided transactions keeps a log.
    let closes = !script.0.iter().any(|step| matches!(step, Step::Transaction { end: End::Prepare, .. }));
    let mut flips = Flips::default();
    let closed = closes && random.chance(1, 3);
    let (journal, end) = match begin(start, script, closed, None) {
        Err(why) if why.contains("nobody makes room") => return Ok(flips),
        begun => begun.map_err(fail)?,
    };
    for _ in 0..count {
        let after = 1 + random.below(journal.len() as u64) as usize;
        let cut = Cut {
            after: if closed { journal.len() } else { after },
            how: *random.pick(&[How::Killed, How::Power(Loss::All), How::Power(Loss::Some(7))]),
        };
        let Some(mut child) = end.at(&journal, cut, 0) else { continue };
        // While a log is there, pages that it names are not compared with their sums.
        let names: &[&str] = match (start.flavour, closed) {
            (Flavour::Shadow | Flavour::Caught | Flavour::Lazy | Flavour::Pool, _) => {
                &["shadow", "shadow", "data.segment", "data.sums", "catalog"]
            }
            (_, true) => &["data.segment", "data.sums", "log"],
            (_, false) => &["log", "log", "catalog", "stage"],
        };
        let name = *random.pick(names);
        let Some(file) = child.disk.lookup(&Path::new(STORE).join(name)) else { continue };
        let len = child.disk.content(file).len();
        // The stage is memory: what is staged has no checksum, its header has.
        let len = if name == "stage" { 64 } else { len };
        // Beginnings, where the structure is, more often than the rest.
        let offset = match random.below(3) {
            0 => random.below(len.min(128)),
            1 if len > 65536 && name != "data.segment" => 65536 + random.below(4096.min(len - 65536)),
            _ => random.below(len),
        };
        child.disk.flip(file, offset, 1 << random.below(8));
        if name == "log" {
            // The last batch of a log cannot be told from a torn tail once it is damaged.
            child.bounds.process = child.bounds.proven;
            child.bounds.power = child.bounds.proven;
            child.history = end.history(child.bounds.proven, child.bounds.highest);
        }
        match begin(&child, &Script::default(), false, None) {
            Ok(_) => flips.harmless += 1,
            Err(why) if NOTICED.iter().any(|noticed| why.starts_with(noticed)) => {
                flips.noticed += 1;
            }
            Err(why) => {
                return Err(fail(format!("bit flipped in {name} at {offset}, cut {cut}: {why}")));
            }
        }
    }
    Ok(flips)
}
