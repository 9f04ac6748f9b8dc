//! Two copies of a log, of which one is lost, lags or lies after a crash: nothing is missing. Then the store has two
//! again, and the other one goes.

use crate::content::Content;
use crate::disk::{Disk, Loss};
use crate::explore::{Cut, Failure, How, begin};
use crate::life::{SECOND, STORE, Start};
use crate::media::Fault;
use crate::random::Random;
use crate::script::Script;
use std::path::{Path, PathBuf};

/// What a life does between the two.
const BETWEEN: [&str; 5] = [
    "",
    "tx:restore:power:80+100",
    "tx:restore:lazy:70+20 truncate tx:restore:power:80+100",
    "resolve tx:restore:lazy:4000+200 flush tx:restore:lazy:100+9000",
    "tx:restore:power:0+9000 tx:restore:power:9000+9000 reopen tx:restore:power:80+100",
];

/// What gives a copy up and makes one again, to be crashed everywhere.
pub const DIRECTED: [&str; 3] = [
    "tx:restore:power:0+900 single tx:restore:power:80+100 double tx:restore:power:0+900",
    "tx:restore:lazy:0+900 tx:restore:prepare:60064+3 single truncate tx:restore:lazy:80+100 double flush",
    "single double single reopen tx:restore:lazy:80+100 double tx:restore:power:4000+200",
];

/// The copies that a disk has; none if it has not both.
fn both(disk: &Disk) -> Option<[PathBuf; 2]> {
    let list = disk.lookup(&Path::new(STORE).join("log.copies"))?;
    let mut count = [0];
    let there = disk.content(list).read(32, &mut count) && count == [2];
    let copies = [Path::new(STORE).join("log"), SECOND.into()];
    (there && copies.iter().all(|copy| disk.lookup(copy).is_some())).then_some(copies)
}

/// Damages a copy; how.
fn damage(disk: &mut Disk, name: &Path, earlier: &Disk, random: &mut Random) -> String {
    let file = disk.lookup(name).expect("it is there");
    let len = disk.content(file).len();
    match random.below(4) {
        0 => {
            disk.lose(name);
            "lost".into()
        }
        1 => {
            disk.put(file, Content::of(&vec![0; len as usize]));
            "wiped".into()
        }
        2 if earlier.lookup(name) == Some(file) => {
            disk.put(file, earlier.content(file).clone());
            "put back".into()
        }
        _ => {
            let flips: Vec<u64> = (0..1 + random.below(30)).map(|_| random.below(len)).collect();
            flips.iter().for_each(|at| disk.flip(file, *at, 1 << random.below(8)));
            format!("changed at {flips:?}")
        }
    }
}

/// The next opening meets a fault; what that leaves is opened again.
fn fails(child: &Start, random: &mut Random) -> Result<(), String> {
    let fault = Fault {
        at: random.below(160),
        lasting: false,
        again: None,
        full: false,
        part: *random.pick(&[0, 1, 32, 63]),
    };
    let why = |what: &str, why: String| format!("{fault:?}, {what}: {why}");
    let (journal, end) = begin(child, &BETWEEN[1].parse().expect("this script is right"), false, Some(fault))
        .map_err(|error| why("opened", error))?;
    // Most of what matters happens at the beginning.
    let early = journal.len().min(24) as u64;
    let cuts = (0..6).map(|_| (1 + random.below(early.max(1)) as usize, random.bits())).collect::<Vec<_>>();
    let cuts = cuts.into_iter().map(|(after, bits)| Cut {
        after,
        how: if bits % 2 == 0 { How::Power(Loss::All) } else { How::Power(Loss::Some(bits)) },
    });
    let hows = [How::Killed, How::Power(Loss::All), How::Power(Loss::Some(random.bits()))];
    let whole = hows.map(|how| Cut { after: journal.len(), how });
    for cut in whole.into_iter().chain(cuts) {
        if let Some(child) = end.at(&journal, cut, 1) {
            begin(&child, &Script::default(), false, None).map_err(|error| why(&cut.to_string(), error))?;
        }
    }
    Ok(())
}

/// Lives a script, and damages a copy of what crashes leave of it; how often.
pub fn copies(start: &Start, script: &Script, count: u64, random: &mut Random) -> Result<u64, Failure> {
    let fail = |why: String| Failure { path: script.to_string(), why };
    let (journal, end) = match begin(start, script, false, None) {
        Err(why) if why.contains("nobody makes room") => return Ok(0),
        begun => begun.map_err(fail)?,
    };
    let mut damaged = 0;
    let hows = [How::Killed, How::Power(Loss::All), How::Power(Loss::Nothing), How::Power(Loss::Some(7))];
    for _ in 0..count {
        let after = 1 + random.below(journal.len() as u64) as usize;
        let cut = Cut { after, how: *random.pick(&hows) };
        let before = Cut { after: 1 + random.below(after as u64) as usize, how: How::Killed };
        let (Some(mut child), Some(earlier)) = (end.at(&journal, cut, 0), end.at(&journal, before, 0)) else {
            continue;
        };
        let Some(copies) = both(&child.disk) else { continue };
        if random.chance(1, 3) {
            let torn = Cut { after, how: How::Power(Loss::Some(random.bits())) };
            if let Some(mut torn) = end.at(&journal, torn, 0) {
                // An opening that cannot read a copy may find less than the next one, which can.
                torn.durable = false;
                fails(&torn, random).map_err(|why| fail(format!("cut {torn_at}, {why}", torn_at = after)))?;
                damaged += 1;
            }
            continue;
        }
        let first = random.below(2) as usize;
        let how = damage(&mut child.disk, &copies[first], &earlier.disk, random);
        let said = format!("cut {cut}, {} {how} (as at {before})", copies[first].display());
        let between: Script = random.pick(&BETWEEN).parse().expect("these scripts are right");
        let (later, repaired) =
            begin(&child, &between, false, None).map_err(|why| fail(format!("{said}: {why}")))?;
        damaged += 1;
        // The other one goes at the end of that life.
        let cut = Cut { after: later.len(), how: *random.pick(&hows) };
        let Some(mut child) = repaired.at(&later, cut, 1) else { continue };
        let Some(copies) = both(&child.disk) else { return Err(fail(format!("{said}: it has one copy"))) };
        let earlier = child.disk.clone();
        let how = damage(&mut child.disk, &copies[1 - first], &earlier, random);
        let said = format!("{said}; {between}, cut {cut}, the other one {how}");
        begin(&child, &Script::default(), false, None).map_err(|why| fail(format!("{said}: {why}")))?;
    }
    Ok(damaged)
}
