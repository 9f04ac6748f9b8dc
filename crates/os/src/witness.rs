//! Whether memory survived: what a killed process left in the page cache, or in the pages of a file system in
//! memory.
//!
//! The kernel says so nowhere. Several witnesses tell something of it, and each of them alone can be wrong: some
//! container managers show another boot id at each start, some boards show the same one at each boot, and a block
//! snapshot that is mounted is older than the memory of the same boot. So each opening notes what they say
//! ([`Witnesses`]), and the next one compares ([`judge`]).
//!
//! | witness | says that memory survived | can be wrong |
//! |---|---|---|
//! | the inode was never out of memory ([`Medium::pinned`]) | if it has the mark of an opening | no: the mark is nowhere but in memory. A file may have lost it all the same |
//! | boot id | if it is the same | both ways |
//! | clock: when the system was started, and how long it runs | if the first is the same, and the second not less | a wall clock that is set; one that begins at the same time at each boot; a namespace of time |
//! | mount: device, and unique number of the mount | if they are the same | another number in another namespace of mounts; the same one after a boot that is just like the last |
//! | reported write-back errors | - | no: what is reported is lost |
//!
//! The first row that fits counts. If the operator or the program vouches for memory ([`Seen::vouched`]), it
//! survived unless the first row fits. Of a copy ([`Seen::copy`]) nothing tells whether its files are of one moment:
//! without that word, what would be *survived* is *unknown*. `-`: whatever it says. `?`: it says nothing, or said
//! nothing then.
//!
//! | | errors | inode | boot id | clock | mount | verdict |
//! |---|---|---|---|---|---|---|
//! | 1 | reported | - | - | - | - | lost |
//! | 2 | | stayed | - | - | - | survived |
//! | 3 | | | the boot id alone was noted, by an earlier version: same | - | - | survived |
//! | 4 | | | ... other | - | - | lost |
//! | 5 | | | ... ? | - | - | unknown |
//! | 6 | | | same | same or ? | same or ? | survived |
//! | 7 | | | ? | same | same | survived |
//! | 8 | | | other | other or ? | - | lost |
//! | 9 | | | ? | other | other | lost |
//! | 10 | | | anything else | | | unknown |
//!
//! No witness tells these worlds apart; where they look alike, the verdict is *unknown*:
//!
//! 1. A container with a boot id of its own, whose file was out of memory meanwhile; and a machine without a clock
//!    of its own after a power cut.
//! 2. A file system that was unmounted in good order and mounted again, or mounted in another namespace when the
//!    file was out of memory; and an older snapshot of its device, or a device that came back without its last
//!    writes.
//! 3. A wall clock that was set, when the file was out of memory; and a board that has the same boot id and the same
//!    mounts at each boot.
//! 4. A system that shows no boot id, whose clock was set, or whose mounts can't be told; and that system rebooted.
//!
//! One world passes for another, and no machine is known that is so: a board with the same boot id at each boot, no
//! clock of its own, and mounts in the same order, which now runs for longer than when the store was opened (row 6).
//! It looks exactly like a machine on which nothing happened but that a file went from memory. Before Linux 6.8
//! numbers of mounts are used again, so that a snapshot mounted in place of the original, by the same device number,
//! passes for it as well. Where the system does not answer the question for failed write-backs (a filter of system
//! calls, gVisor), they are not noticed. What another program writes over the store's files is not judged here.

use crate::host::{Clock, Id};
use crate::medium::{Media, Medium};
use crate::simulated::{even_if, planted, unless};
use std::collections::BTreeSet;
use std::fmt;
use std::io;

/// What is noted in a store at each opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Witnesses {
    /// The boot's identity; none where the system shows none.
    pub boot: Option<Id>,
    /// The others; none in what an earlier version noted.
    pub others: Option<Others>,
}

/// Witnesses besides the boot's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Others {
    /// The system's clocks.
    pub clock: Option<Clock>,
    /// A digest of the mounts that the files are on; none if it can't be told of one of them.
    pub mounts: Option<u64>,
}

/// What can be seen at an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// What there is to be noted.
    pub now: Witnesses,
    /// The files' inodes, or others of the same file systems, stayed in memory since an opening marked them.
    pub pinned: bool,
    /// Of one of the files something was reported lost on its way to the medium.
    pub lost: bool,
    /// An operator, or the program, says that memory survived.
    pub vouched: bool,
    /// The files are not those that were in use.
    pub copy: bool,
}

/// What a file says, which need not stay open.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    mount: Option<[u64; 2]>,
    pinned: bool,
}

impl Look {
    /// At a file.
    pub fn at(file: &dyn Medium) -> Look {
        Look { mount: file.mount(), pinned: file.pinned() }
    }
}

impl Seen {
    /// What the system and the files say.
    pub fn of(media: &dyn Media, files: &[Look]) -> io::Result<Seen> {
        let boot = media.boot()?;
        let pinned = files.iter().filter(|file| file.pinned);
        // Of a file system of which an inode stayed in memory the others went when they were written back.
        let devices: BTreeSet<u64> = pinned.filter_map(|file| file.mount).map(|[device, _]| device).collect();
        let stayed = |file: &Look| file.mount.is_some_and(|[device, _]| devices.contains(&device));
        let all = files.iter().all(|file| file.pinned || stayed(file));
        let mounts = files.iter().map(|file| file.mount).collect();
        let others = Others { clock: boot.clock, mounts: digest(&mounts) };
        let now = Witnesses { boot: boot.id, others: Some(others) };
        Ok(Seen { now, pinned: all && !files.is_empty(), ..Seen::default() })
    }

    /// The same of files that are a copy, or are not.
    pub fn of_copy(self, yes: bool) -> Seen {
        Seen { copy: yes, ..self }
    }

    /// The same, where somebody vouches for memory or does not.
    pub fn vouched(self, yes: bool) -> Seen {
        Seen { vouched: yes, ..self }
    }
}

/// Mounts that files are on ([`Medium::mount`]).
pub type Mounts = BTreeSet<Option<[u64; 2]>>;

/// A digest of them; none if one can't be told.
pub fn digest(mounts: &Mounts) -> Option<u64> {
    let places: Option<BTreeSet<[u64; 2]>> = mounts.iter().copied().collect();
    // FNV-1a: to be compared with what another version of this program has noted.
    let bytes = |places: BTreeSet<[u64; 2]>| places.into_iter().flatten().flat_map(u64::to_le_bytes);
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    Some(bytes(places?).fold(0xcbf2_9ce4_8422_2325, step))
}

/// Whether memory survived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It did.
    Survived,
    /// It did not.
    Lost(Reasons),
    /// The witnesses contradict each other, or say too little.
    Unknown(Reasons),
}

/// What a witness says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Memory survived.
    Same,
    /// It did not.
    Other,
    /// It says nothing, or said nothing then.
    Nothing,
}

impl Word {
    fn of<T>(then: Option<T>, now: Option<T>, same: impl FnOnce(&T, &T) -> bool) -> Word {
        match (then, now) {
            (Some(then), Some(now)) if same(&then, &now) => Word::Same,
            (Some(_), Some(_)) => Word::Other,
            _ => Word::Nothing,
        }
    }
}

/// What the witnesses say, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reasons {
    lost: bool,
    copy: bool,
    boot: Word,
    clock: Word,
    mounts: Word,
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost {
            return f.write_str("the system reports that writes to its files were lost");
        }
        if self.copy {
            return f.write_str("its files are copies, and nothing tells whether they are of one moment");
        }
        f.write_str(match self.boot {
            Word::Same => "the boot id is the same",
            Word::Other => "the boot id is another one",
            Word::Nothing => "there is no boot id to compare (/proc/sys/kernel/random/boot_id)",
        })?;
        f.write_str(match self.clock {
            Word::Same => ", by its clock the system is still running",
            Word::Other => ", by its clock the system was started again",
            Word::Nothing => "",
        })?;
        f.write_str(match self.mounts {
            Word::Same => ", the mount is the same",
            Word::Other => ", the files are on another mount",
            Word::Nothing => ", the mount is not known",
        })
    }
}

/// Judges by the table at the head of this file.
pub fn judge(then: &Witnesses, seen: &Seen) -> Verdict {
    let now = seen.now.others.unwrap_or_default();
    let noted = then.others.unwrap_or_default();
    let boot = Word::of(then.boot, seen.now.boot, |then, now| then == now);
    let clock = Word::of(noted.clock, now.clock, |then, now| now.goes_on_from(then));
    let mounts = Word::of(noted.mounts, now.mounts, |then, now| then == now);
    let reasons = Reasons { lost: seen.lost, copy: false, boot, clock, mounts };
    if seen.lost {
        return Verdict::Lost(reasons);
    }
    if seen.vouched {
        return Verdict::Survived;
    }
    match judge_original(then, seen, reasons) {
        Verdict::Survived if unless("copies-judged-by-the-boot", seen.copy) => {
            Verdict::Unknown(Reasons { copy: true, ..reasons })
        }
        other => other,
    }
}

/// The same of files that are those that were in use.
fn judge_original(then: &Witnesses, seen: &Seen, reasons: Reasons) -> Verdict {
    use Word::{Nothing, Other, Same};
    let Reasons { boot, clock, mounts, .. } = reasons;
    if unless("mark-not-looked-at", seen.pinned) {
        return Verdict::Survived;
    }
    if then.others.is_none() || planted("boot-id-alone") {
        return match boot {
            Same => Verdict::Survived,
            Other => Verdict::Lost(reasons),
            Nothing => Verdict::Unknown(reasons),
        };
    }
    match (boot, clock, mounts) {
        (Same, Same | Nothing, Same | Nothing) | (Nothing, Same, Same) => Verdict::Survived,
        (Same, Same | Nothing, Other) if even_if("another-mount-believed", false) => Verdict::Survived,
        (Other, Other | Nothing, _) | (Nothing, Other, Other) => Verdict::Lost(reasons),
        _ => Verdict::Unknown(reasons),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use Word::{Nothing, Other, Same};

    const THEN: Clock = Clock { began: 1_700_000_000_000_000_000, running: 60_000_000_000 };

    fn told<T>(word: Word, same: T, other: T) -> Option<T> {
        match word {
            Same => Some(same),
            Other => Some(other),
            Nothing => None,
        }
    }

    /// What is noted, and what is seen where the witnesses say so.
    fn world(boot: Word, clock: Word, mounts: Word) -> (Witnesses, Seen) {
        let later = Clock { running: THEN.running + 5, ..THEN };
        let rebooted = Clock { began: THEN.began + 100_000_000_000, running: THEN.running + 5 };
        let others = Others { clock: Some(THEN), mounts: Some(7) };
        let now = Others { clock: told(clock, later, rebooted), mounts: told(mounts, 7, 8) };
        let now = Witnesses { boot: told(boot, [1; 16], [2; 16]), others: Some(now) };
        (Witnesses { boot: Some([1; 16]), others: Some(others) }, Seen { now, ..Seen::default() })
    }

    #[test]
    fn the_table_holds_in_every_world() {
        let words = [Same, Other, Nothing];
        for world_number in 0..27 {
            let [boot, clock, mounts] = [1, 3, 9].map(|by| words[world_number / by % 3]);
            let (then, seen) = world(boot, clock, mounts);
            let found = match judge(&then, &seen) {
                Verdict::Survived => "survived",
                Verdict::Lost(_) => "lost",
                Verdict::Unknown(_) => "unknown",
            };
            let expected = match (boot, clock, mounts) {
                (Same, Same | Nothing, Same | Nothing) | (Nothing, Same, Same) => "survived",
                (Other, Other | Nothing, _) | (Nothing, Other, Other) => "lost",
                _ => "unknown",
            };
            assert_eq!(found, expected, "{boot:?} {clock:?} {mounts:?}");
            // Whatever the others say.
            assert_eq!(judge(&then, &Seen { pinned: true, ..seen }), Verdict::Survived);
            assert_eq!(judge(&then, &Seen { vouched: true, copy: true, ..seen }), Verdict::Survived);
            assert!(matches!(judge(&then, &Seen { copy: true, pinned: true, ..seen }), Verdict::Unknown(_)));
            let copied = judge(&then, &Seen { copy: true, ..seen });
            assert_eq!(matches!(copied, Verdict::Lost(_)), expected == "lost");
            let lost = judge(&then, &Seen { pinned: true, vouched: true, lost: true, ..seen });
            assert!(matches!(&lost, Verdict::Lost(why) if why.to_string().contains("lost")), "{lost:?}");
            // An earlier version noted the boot alone, and is judged by it.
            let earlier = judge(&Witnesses { others: None, ..then }, &seen);
            assert_eq!(matches!(earlier, Verdict::Survived), boot == Same);
            assert_eq!(matches!(earlier, Verdict::Unknown(_)), boot == Nothing);
        }
    }

    #[test]
    fn mounts_are_those_of_all_files_in_any_order() {
        let of = |mounts: &[Option<[u64; 2]>]| digest(&mounts.iter().copied().collect());
        assert_eq!(of(&[Some([1, 2]), Some([3, 4]), Some([1, 2])]), of(&[Some([3, 4]), Some([1, 2])]));
        assert_ne!(of(&[Some([1, 2])]), of(&[Some([1, 3])]));
        assert_ne!(of(&[Some([1, 2])]), of(&[Some([1, 2]), Some([3, 4])]));
        assert_eq!(of(&[Some([1, 2]), None]), None);
    }

    #[test]
    fn the_running_system_is_the_one_that_it_was_and_a_marked_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = Files.create(&dir.path().join("f")).unwrap();
        let first = Seen::of(&Files, &[Look::at(&*file)]).unwrap();
        assert!(!first.pinned);
        let again = Files.open(&dir.path().join("f"), false).unwrap();
        assert_eq!(judge(&first.now, &Seen::of(&Files, &[Look::at(&*again)]).unwrap()), Verdict::Survived);
        file.watch();
        let second = Seen::of(&Files, &[Look::at(&*again)]).unwrap();
        assert_eq!(second.now.boot, first.now.boot);
        if !second.pinned {
            eprintln!("not tested: this file system keeps no mark");
            return;
        }
        let elsewhere = Witnesses { boot: Some([9; 16]), ..first.now };
        assert_eq!(judge(&elsewhere, &second), Verdict::Survived);
        assert!(!matches!(judge(&elsewhere, &first), Verdict::Survived));
    }
}
