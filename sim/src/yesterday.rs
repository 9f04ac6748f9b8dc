//! One file of a store is yesterday's: after a crash it is what it was at an earlier moment, as a tool leaves it
//! that restores one file. If it says less than what `generations` says of it, the store is refused and the file is
//! named, or what it holds is right all the same. Copies from within one generation cannot be told apart, and are
//! left out.

use crate::content::Content;
use crate::disk::{Disk, Loss};
use crate::explore::{Cut, Failure, How, begin};
use crate::life::{STORE, Start};
use crate::random::Random;
use crate::script::Script;
use caliburn_os::host::Id;
use std::path::Path;

/// What became of older files.
#[derive(Debug, Default, Clone, Copy)]
pub struct Older {
    /// Refused by name.
    pub noticed: u64,
    /// Of no consequence.
    pub harmless: u64,
}

/// The files that say a generation, where it stands in them, and where what `generations` says of them.
const FILES: [(&str, [u64; 2], [u64; 2]); 8] = [
    ("catalog", [56; 2], [48, 4096 + 48]),
    ("log", [96, 4096 + 96], PAGES),
    ("undo", [88, 4096 + 88], PAGES),
    ("shadow", [64, 4096 + 64], PAGES),
    ("stage", [128; 2], [8192; 2]),
    ("data.segment", [4096 + 32, 4608 + 32], DATA),
    ("data.sums", [512 + 32, 1024 + 32], DATA),
    ("generations", PAGES, PAGES),
];
const PAGES: [u64; 2] = [40, 4096 + 40];
const DATA: [u64; 2] = [8192 + 16; 2];

fn content<'d>(disk: &'d Disk, name: &str) -> Option<&'d Content> {
    disk.lookup(&Path::new(STORE).join(name)).map(|file| disk.content(file))
}

/// The greatest generation that a file says.
fn generation(content: &Content, places: [u64; 2]) -> u64 {
    let mut word = [0; 8];
    let said =
        places.iter().filter_map(|at| content.read(*at, &mut word).then_some(u64::from_le_bytes(word)));
    said.max().unwrap_or(0)
}

/// Whether nobody has used a stage in that boot: it counts as one that is gone, which is legitimate.
fn is_unused(stage: &Content, boot: Id) -> bool {
    let (mut made_in, mut current) = (Id::default(), [0; 8]);
    let there = stage.read(32, &mut made_in) && stage.read(256, &mut current);
    !there || made_in != boot || u64::from_ne_bytes(current) == 2
}

/// Lives a script, and puts a file of what crashes leave of it back to what it was earlier; how often.
pub fn yesterday(start: &Start, script: &Script, count: u64, random: &mut Random) -> Result<Older, Failure> {
    let fail = |why: String| Failure { path: script.to_string(), why };
    let mut older = Older::default();
    let (journal, end) = match begin(start, script, random.chance(1, 3), None) {
        Err(why) if why.contains("nobody makes room") => return Ok(older),
        begun => begun.map_err(fail)?,
    };
    let hows = [How::Killed, How::Power(Loss::All), How::Power(Loss::Nothing), How::Power(Loss::Some(7))];
    for _ in 0..count {
        let whole = random.chance(1, 3);
        let after = if whole { journal.len() } else { 1 + random.below(journal.len() as u64) as usize };
        let cut = Cut { after, how: *random.pick(&hows) };
        let before = Cut { after: 1 + random.below(after as u64) as usize, how: How::Killed };
        let (Some(mut child), Some(earlier)) = (end.at(&journal, cut, 0), end.at(&journal, before, 0)) else {
            continue;
        };
        let (name, places, said) = *random.pick(&FILES);
        let file = child.disk.lookup(&Path::new(STORE).join(name));
        let (Some(file), Some(then)) = (file, content(&earlier.disk, name)) else { continue };
        let said = content(&child.disk, "generations").map_or(0, |of| generation(of, said));
        if generation(then, places) >= said || name == "stage" && is_unused(then, earlier.boot) {
            continue;
        }
        child.disk.put(file, then.clone());
        match begin(&child, &Script::default(), false, None) {
            Ok(_) => older.harmless += 1,
            Err(why) if why.contains(&format!("/{name}")) => older.noticed += 1,
            Err(why) => return Err(fail(format!("cut {cut}, {name} as at {before}: {why}"))),
        }
    }
    Ok(older)
}
