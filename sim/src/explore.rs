//! Every crash of a workload: after each thing that a life does to its disk, the process is killed and the
//! power is cut, in several ways; a new life begins from what is left, and is cut short itself.

use crate::disk::{Act, Disk, Loss};
use crate::life::{Doubt, Flavour, Start, live, machine};
use crate::media::{Entry, Fault};
use crate::model::{Bounds, History, Mark};
use crate::random::Random;
use crate::script::Script;
use caliburn::Policy;
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The process is killed.
    Killed,
    /// It is killed when so many bytes of a write were done.
    Interrupted(usize),
    /// The power fails.
    Power(Loss),
    /// It is killed, and some of what was written to segments, not forced, was lost on its way to the medium:
    /// which, says the seed.
    Lost(u64),
    /// The process is killed; the segments' medium was pulled and mounted again.
    Pulled,
    /// The process is killed, and memory survives, whatever the machine shows then: the seed says what.
    Strange(u64),
    /// The power fails, or an older state of the medium is mounted, and the machine shows much of what it showed
    /// before: the seed says what.
    Lying(u64),
}

/// Names of segments end so.
const SEGMENT: &str = ".segment";

/// When and how a life ends: after so many entries of its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Entries of the journal that come before.
    pub after: usize,
    /// How.
    pub how: How,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.after)?;
        match self.how {
            How::Killed => f.write_str("k"),
            How::Lost(seed) => write!(f, "l{seed}"),
            How::Pulled => f.write_str("p"),
            How::Interrupted(bytes) => write!(f, "i{bytes}"),
            How::Strange(seed) => write!(f, "w{seed}"),
            How::Lying(seed) => write!(f, "y{seed}"),
            How::Power(Loss::All) => f.write_str("a"),
            How::Power(Loss::Nothing) => f.write_str("n"),
            How::Power(Loss::Some(seed)) => write!(f, "s{seed}"),
        }
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Cut, String> {
        let bad = || {
            format!("{text:?} is no cut; one is like 17k, 17i4096, 17a, 17n, 17s5, 17l5, 17p, 17w5 or 17y5")
        };
        let text = text.trim();
        let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number = || text[at + 1..].parse().map_err(|_| bad());
        let how = match text.as_bytes()[at] {
            b'k' => How::Killed,
            b'l' => How::Lost(number()?),
            b'p' => How::Pulled,
            b'i' => How::Interrupted(number()? as usize),
            b'a' => How::Power(Loss::All),
            b'n' => How::Power(Loss::Nothing),
            b's' => How::Power(Loss::Some(number()?)),
            b'w' => How::Strange(number()?),
            b'y' => How::Lying(number()?),
            _ => return Err(bad()),
        };
        Ok(Cut { after: text[..at].parse().map_err(|_| bad())?, how })
    }
}

/// A wrong thing, and the lives and cuts that lead to it.
#[derive(Debug)]
pub struct Failure {
    /// `script | cut | script | cut | ... `, to be given to `replay`.
    pub path: String,
    /// What was wrong.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nreplay with: replay '{}'", self.why, self.path)
    }
}

/// How thoroughly to look.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Random losses at each moment of the first life.
    pub losses: u64,
    /// Of 64 moments of the first life, how many are cut.
    pub first: u64,
    /// Of 64 moments of later lives, how many are cut.
    pub later: u64,
    /// Lives after the first.
    pub lives: usize,
}

/// Looks at crashes, and counts them.
#[derive(Debug, Default)]
pub struct Explorer {
    /// What was looked at, by any of the explorers that share it.
    seen: Arc<Mutex<HashSet<u64>>>,
    /// Pictures of a crashed disk that were recovered and compared.
    pub images: u64,
    /// Pictures equal to an earlier one, not looked at again.
    pub repeated: u64,
    /// Lives.
    pub lives: u64,
    /// Lives given up because the log was full and there are no threads to make room.
    pub stuck: u64,
}

/// What lives after a crash do before they are cut.
const LATER: [&str; 6] = [
    "",
    "tx:restore:power:80+100",
    "tx:norestore:lazy:90+200,4090+12 tend",
    "tx:restore:lazy:70+20 truncate",
    "resolve tx:restore:lazy:4000+200 flush",
    "tx:restore:power:80+100 reopen",
];

impl Explorer {
    /// Another one, which does not repeat what this one has seen.
    pub fn sharing(&self) -> Explorer {
        Explorer { seen: self.seen.clone(), ..Explorer::default() }
    }

    /// Lives the script from `start` and looks at every crash.
    pub fn explore(
        &mut self,
        start: &Start,
        script: &Script,
        effort: Effort,
        seed: u64,
    ) -> Result<(), Failure> {
        let mut random = Random::new(seed);
        self.life(start, script, effort, 0, &mut random).map_err(|mut failure| {
            failure.path = format!("{script}{}", failure.path);
            failure
        })
    }

    fn life(
        &mut self,
        start: &Start,
        script: &Script,
        effort: Effort,
        depth: usize,
        random: &mut Random,
    ) -> Result<(), Failure> {
        let here = |why| Failure { path: String::new(), why };
        let (lived, mut end) = match begin(start, script, depth == 0, None) {
            Ok(begun) => begun,
            // A workload that fills the log before a round of truncation was its turn.
            Err(why) if why.contains("nobody makes room") => {
                self.stuck += 1;
                return Ok(());
            }
            Err(why) => return Err(here(why)),
        };
        self.lives += 1;
        if depth > 0 {
            self.images += 1;
        }
        if depth == effort.lives {
            return Ok(());
        }
        for (after, entry) in lived.iter().enumerate() {
            let before = end.disk.clone();
            let Some(act) = end.pass(entry) else { continue };
            if !random.chance(if depth == 0 { effort.first } else { effort.later }, 64) {
                continue;
            }
            let flavour = start.flavour;
            let losing = (flavour.logs_all() || flavour == Flavour::Undo) && end.disk.unforced(SEGMENT);
            let lasting = !matches!(act, Act::Store(..)) || start.flavour.steals();
            for how in hows(act, effort, depth, flavour, (losing, lasting), random) {
                let cut = Cut { after: after + 1, how };
                let child = end.start(cut, &before, act, depth);
                let mut hasher = DefaultHasher::new();
                let Start { bounds, .. } = &child;
                (child.disk.digest(), child.durable, depth).hash(&mut hasher);
                (child.sight, child.strange, child.doubt, child.boot).hash(&mut hasher);
                child.history.digest(bounds.process, bounds.highest).hash(&mut hasher);
                if !self.seen.lock().expect("no panic under this lock").insert(hasher.finish()) {
                    self.repeated += 1;
                    continue;
                }
                let script: Script = random.pick(&LATER).parse().expect("these scripts are right");
                self.life(&child, &script, effort, depth + 1, random).map_err(|mut failure| {
                    failure.path = format!(" | {cut} | {script}{}", failure.path);
                    failure
                })?;
            }
        }
        Ok(())
    }
}

/// A life's journal being gone through again.
#[derive(Clone)]
pub(crate) struct End {
    disk: Disk,
    start: Start,
    /// All states, the life's own too.
    lived: History,
    /// What the life found when it opened the store; while it does, a second try must find the same.
    found: Option<usize>,
    /// It has opened it.
    opened: bool,
    time: u64,
}

/// Lives a life; its journal, and the walk through it.
pub(crate) fn begin(
    start: &Start,
    script: &Script,
    close: bool,
    fault: Option<Fault>,
) -> Result<(Vec<Entry<Mark>>, End), String> {
    let machine = machine(start, fault);
    let lived = catch_unwind(AssertUnwindSafe(|| live(start, script, close, &machine)));
    let lived = lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(format!("panicked: {text}"))
    })?;
    let mut walked = start.clone();
    if let Some(found) = lived.found
        && start.durable
    {
        // Opening it again, at whatever moment, must show the same.
        walked.bounds =
            Bounds { process: found, power: found, proven: found, highest: found, ..start.bounds };
    }
    Ok((
        lived.journal,
        End {
            disk: start.disk.clone(),
            start: walked,
            lived: lived.history,
            found: lived.found,
            opened: false,
            time: lived.time,
        },
    ))
}

impl End {
    /// What is left after a cut of a life whose journal this is; nothing, if nothing was done before.
    pub fn at(&self, journal: &[Entry<Mark>], cut: Cut, depth: usize) -> Option<Start> {
        let mut end = self.clone();
        let mut last = None;
        for entry in &journal[..cut.after.min(journal.len())] {
            let before = end.disk.clone();
            last = end.pass(entry).map(|act| (act, before)).or(last);
        }
        last.map(|(act, before)| end.start(cut, &before, act, depth))
    }

    /// The life's states between two.
    pub fn history(&self, oldest: usize, newest: usize) -> History {
        self.lived.until(oldest, newest)
    }

    /// Goes on by an entry; the act, if it is one.
    fn pass<'e>(&mut self, entry: &'e Entry<Mark>) -> Option<&'e Act> {
        match entry {
            Entry::Mark(mark) => {
                if let Mark::Opened(_) = mark {
                    self.found = None;
                    self.opened = true;
                    self.start.history = self.lived.clone();
                }
                self.start.bounds.note(*mark);
                None
            }
            Entry::Act(act) => {
                self.disk.apply(act);
                Some(act)
            }
        }
    }

    /// The life that begins after a cut here. `before` is the disk before the last act.
    fn start(&self, cut: Cut, before: &Disk, act: &Act, depth: usize) -> Start {
        let (mut bounds, flavour) = (self.start.bounds, self.start.flavour);
        let (disk, durable) = match (cut.how, act) {
            (How::Power(loss), _) => (self.disk.after_power_cut(loss), true),
            (How::Lying(seed), _) => (self.disk.after_power_cut(Loss::Some(seed)), true),
            (How::Strange(seed), _) => {
                let mut disk = self.disk.clone();
                if seed & 1 == 0 {
                    disk.evict();
                }
                (disk, false)
            }
            (How::Interrupted(done), Act::Write(id, offset, bytes)) => {
                (before.interrupted(*id, *offset, bytes, done.min(bytes.len())), false)
            }
            (How::Lost(seed), _) => {
                (self.disk.after_lost_writes(SEGMENT, Some(seed), flavour == Flavour::Undo), false)
            }
            (How::Pulled, _) => (self.disk.after_lost_writes(SEGMENT, None, false), false),
            _ => (self.disk.clone(), false),
        };
        if durable {
            bounds.process = bounds.power;
        }
        bounds.exact = self.found.filter(|_| !durable);
        // A new boot begins, or the old one goes on.
        let lied = matches!(cut.how, How::Lying(_));
        let boot = if durable && !lied { [depth as u8 + 3; 16] } else { self.start.boot };
        let time = if durable { (depth as u64 + 3) << 41 } else { self.time };
        let history = self.start.history.until(bounds.power, bounds.highest);
        let before = self.start.sight;
        let sight = match cut.how {
            How::Power(_) => before.rebooted(),
            How::Lying(seed) => before.lying(seed),
            How::Strange(seed) => before.strange(seed),
            _ => before,
        };
        // What was noted is what the last opening saw that came so far, not what the machine showed just before.
        let strange = !durable && (sight != before || !self.opened && self.start.strange);
        let doubt = match strange && !disk.marked(flavour.keepers()) {
            _ if durable => Doubt::None,
            _ if !self.opened && self.start.doubt != Doubt::None => Doubt::Before,
            true => Doubt::Here,
            false => Doubt::None,
        };
        Start { disk, boot, time, bounds, history, durable, sight, strange, doubt, ..self.start }
    }
}

/// The ways in which a life is cut after an act. `losing`: segments have what can be lost on its way. `lasting`: the
/// act may have changed what a power cut leaves.
fn hows(
    act: &Act,
    effort: Effort,
    depth: usize,
    flavour: Flavour,
    (losing, lasting): (bool, bool),
    random: &mut Random,
) -> Vec<How> {
    let mut hows = vec![How::Killed];
    if losing {
        hows.push(How::Lost(random.bits()));
        hows.extend((flavour != Flavour::Undo).then_some(How::Pulled));
    }
    let in_cache = flavour.policy() == Policy::Redo || flavour == Flavour::Undo;
    // Lives that doubt their memory are long: a check, and an opening that says so.
    if in_cache && random.chance(1, 16) {
        hows.push(How::Strange(random.bits()));
        hows.extend(lasting.then(|| How::Lying(random.bits())));
    }
    if let Act::Write(_, _, bytes) = act
        && bytes.len() > 4096
    {
        hows.push(How::Interrupted(4096 * (1 + random.below(bytes.len() as u64 / 4096) as usize)));
    }
    if lasting {
        hows.push(How::Power(Loss::All));
        hows.push(How::Power(Loss::Nothing));
        hows.extend((0..effort.losses).map(|_| How::Power(Loss::Some(random.bits()))));
    }
    if depth > 0 {
        return vec![if random.chance(1, 2) { How::Killed } else { *random.pick(&hows) }];
    }
    hows
}

/// What was wrong once. The cuts count what a life does, which changes a little with the engine, so that the first
/// is tried [`nearby`] as well; should it move further, the planted bugs `opened-before-forced` and
/// `answer-not-awaited` tell.
pub const FOUND: [&str; 2] = [
    // The second opening's record overwrote the beginning of one that a killed process had not finished. The third
    // opening said in the status that it began behind it, and the power failed with that written, and the
    // record not: the unfinished one came up again.
    "tx:restore:power:0+9000 tx:restore:power:9000+9000 tx:restore:power:18000+9000 tx:restore:power:27000+9000 \
     tx:restore:power:36000+9000 hold truncate tx:restore:lazy:100+9000 tx:restore:lazy:9100+9000 \
     tx:restore:lazy:18100+9000 tx:restore:lazy:100+8 | 131k | tx:restore:power:80+100 | 65k | \
     tx:norestore:lazy:90+200,4090+12 tend | 10s7 | tx:restore:power:80+100",
    // What the segment showed was lost on its way to the medium. The second opening was told so, and killed
    // before it had noted that; the third relied on what the segment showed.
    "tx:restore:lazy:200+4100 tx:restore:power:8176+16,8192+25,8168+8 tx:restore:async:123+9 tend | \
     80l4175525706487714554 | tx:norestore:lazy:90+200,4090+12 tend | 3k | resolve tx:restore:lazy:4000+200 flush",
];

/// The path, and others whose first cut comes a little earlier or later.
pub fn nearby(path: &str) -> impl Iterator<Item = String> {
    let (script, rest) = path.split_once("| ").expect("it has a cut");
    let digits = rest.find(|c: char| !c.is_ascii_digit()).expect("it says how the life ended");
    let (count, rest) = (rest[..digits].parse::<u64>().expect("they are digits"), &rest[digits..]);
    (count.saturating_sub(16)..=count + 16).map(move |count| format!("{script}| {count}{rest}"))
}

/// What [`replay`] says of a cut that no life reaches.
pub const NOT_REACHED: &str = "nothing was done before the cut";

/// Repeats what a failure prints: `script | cut | script | cut | script`.
pub fn replay(start: &Start, path: &str, talk: bool) -> Result<(), String> {
    let mut start = start.clone();
    let parts: Vec<&str> = path.split('|').collect();
    for (depth, part) in parts.chunks(2).enumerate() {
        let script: Script = part[0].parse()?;
        let (journal, end) = begin(&start, &script, depth == 0, None)?;
        let Some(cut) = part.get(1) else { return Ok(()) };
        let cut: Cut = cut.parse()?;
        if talk {
            println!("life {depth}: {} entries, found state {:?}", journal.len(), end.found);
            let from = cut.after.saturating_sub(if depth == 0 { 40 } else { 1000 });
            for (i, entry) in journal.iter().enumerate().take(cut.after).skip(from) {
                println!("  {i:4} {}", brief(entry));
            }
        }
        start = end.at(&journal, cut, depth).ok_or(NOT_REACHED)?;
    }
    Ok(())
}

fn brief(entry: &Entry<Mark>) -> String {
    match entry {
        Entry::Act(Act::Write(file, offset, bytes)) => {
            format!("write {file} at {offset}, {} bytes", bytes.len())
        }
        Entry::Act(Act::Store(file, offset, bytes)) => {
            format!("store {file} at {offset}, {} bytes", bytes.len())
        }
        Entry::Act(Act::StoreDirect(file, offset, bytes)) => {
            format!("store directly {file} at {offset}, {} bytes", bytes.len())
        }
        Entry::Act(Act::Replace(name, file, _)) => format!("replace {} by {file}", name.display()),
        Entry::Act(act) => format!("{act:?}"),
        Entry::Mark(mark) => format!("{mark:?}"),
    }
}

/// Lives the script once for each of its operations, with a fault there; whatever the store says, what it
/// acknowledged is there when the machine is repaired.
pub fn faults(start: &Start, script: &Script, random: &mut Random) -> Result<u64, Failure> {
    let sound = machine(start, None);
    let why = |why: String, fault: Option<Fault>| Failure {
        path: format!("{script}"),
        why: format!("{fault:?}: {why}"),
    };
    live(start, script, true, &sound).map_err(|e| why(e, None))?;
    let mut injected = 0;
    for at in 0..sound.operations() {
        // Most of a pool's are reads of pages, as every comparison makes them.
        if start.flavour == Flavour::Pool && !random.chance(1, 16) {
            continue;
        }
        let lasting = random.chance(1, 2);
        let fault = Fault {
            at,
            lasting,
            again: (!lasting && random.chance(1, 2)).then(|| 1 + random.below(24)),
            full: random.chance(1, 3),
            part: *random.pick(&[0, 1, 2, 32, 63, 64]),
        };
        let fail = |text| why(text, Some(fault));
        let (journal, end) = begin(start, script, true, Some(fault)).map_err(fail)?;
        injected += 1;
        // In persistent memory what failed half way counts before the life is over.
        if start.flavour == Flavour::Persistent {
            for after in 1..journal.len() {
                let cut = Cut { after, how: How::Power(Loss::Some(random.bits())) };
                if random.below(journal.len() as u64) < 24
                    && let Some(child) = end.at(&journal, cut, 0)
                {
                    let why = |e: String| fail(format!("cut {cut}: {e}"));
                    begin(&child, &Script::default(), false, None).map_err(why)?;
                }
            }
        }
        // What failed may go from the page cache, too.
        let lost = start.flavour.logs_all().then_some(How::Lost(random.bits()));
        let power = [Loss::All, Loss::Some(random.bits())].map(How::Power);
        for how in [How::Killed].into_iter().chain(lost).chain(power) {
            let cut = Cut { after: journal.len(), how };
            let Some(child) = end.at(&journal, cut, 0) else { continue };
            let why = |e: String| fail(format!("{how:?}: {e}"));
            // What is acknowledged after the repair is there, too, when the power fails then.
            let after: Script = "tx:restore:power:80+100,65600+100".parse().expect("this script is right");
            // With the undo policy that takes a close.
            let (journal, repaired) =
                begin(&child, &after, start.flavour == Flavour::Undo, None).map_err(why)?;
            if journal.is_empty() {
                continue;
            }
            let mut cuts = vec![Cut { after: journal.len(), how: How::Power(Loss::All) }];
            let page =
                |entry: &Entry<Mark>| matches!(entry, Entry::Act(Act::Write(_, _, b)) if b.len() == 4096);
            let torn = |after, seed| Cut { after, how: How::Power(Loss::Some(seed)) };
            cuts.push(torn(1 + random.below(journal.len() as u64) as usize, random.bits()));
            let pages = journal.iter().enumerate().filter(|(_, entry)| page(entry));
            cuts.extend(pages.take(6).map(|(i, _)| torn(i + 1, random.bits() | 1)));
            for cut in cuts {
                let Some(child) = repaired.at(&journal, cut, 1) else { continue };
                let why = |e: String| fail(format!("{how:?}, repaired, then {cut}: {e}"));
                begin(&child, &Script::default(), false, None).map_err(why)?;
            }
        }
    }
    Ok(injected)
}
