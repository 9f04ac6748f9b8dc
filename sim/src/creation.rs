//! Crashes while a store and its segments are made: nothing is left that a second attempt trips over, and
//! what was acknowledged is there.

use crate::adoption;
use crate::disk::{Disk, Loss};
use crate::explore::Failure;
use crate::life::{Flavour, LifeMachine, SEGMENT, STORE, UNFORCED, is_lost, options};
use crate::making::Making;
use crate::media::{Entry, Fault, Machine};
use crate::random::Random;
use caliburn::Mode;
use std::sync::Arc;

const OWN: Making = Making { make, take_up };

/// What was acknowledged.
const STEPS: [&str; 3] = ["the store", "segment a", "segment b"];

/// Makes a store and two segments; the names of what was acknowledged are counted by `done`.
fn make(machine: &Arc<Machine<usize>>, flavour: Flavour) -> Result<(), String> {
    machine.run(|| {
        let store = options(machine, 50, flavour).open(STORE).map_err(|e| e.to_string())?;
        machine.mark(1);
        for (i, name) in ["a", "b"].into_iter().enumerate() {
            store.segment_or_create(name, SEGMENT).map_err(|e| e.to_string())?;
            machine.mark(i + 2);
        }
        store.close().map_err(|e| e.to_string())
    })
}

/// Opens what is left, makes what is missing, uses it; `acknowledged` must be there already.
fn take_up(disk: Disk, boot: u8, acknowledged: usize, flavour: Flavour) -> Result<(), String> {
    let machine: Arc<LifeMachine> =
        Machine::new(disk, [boot; 16], u64::from(boot) << 41, flavour.hardware(), None);
    machine.run(|| {
        let mut options = options(&machine, 50, flavour);
        let there = options.create(false).open(STORE);
        // With the undo policy a store that was in use is lost with its memory.
        let why = there.as_ref().err().filter(|_| flavour == Flavour::Undo).map(ToString::to_string);
        if why.is_some_and(|why| boot != 1 && is_lost(&why) || why.contains(UNFORCED)) {
            return Ok(());
        }
        if acknowledged > 0 {
            let store = there.map_err(|e| format!("{} is not there: {e}", STEPS[0]))?;
            for (i, name) in ["a", "b"].iter().enumerate().take(acknowledged - 1) {
                store.segment(name).map_err(|_| format!("{} is not there", STEPS[i + 1]))?;
            }
        } else {
            drop(there);
        }
        let store = options.create(true).open(STORE).map_err(|e| format!("a second attempt failed: {e}"))?;
        for name in ["a", "b"] {
            let segment = store.segment_or_create(name, SEGMENT).map_err(|e| e.to_string())?;
            let region = segment.map_all().map_err(|e| e.to_string())?;
            let mut bytes = vec![1; region.len()];
            region.read(0, &mut bytes);
            if bytes.iter().any(|b| *b != 0) {
                return Err(format!("segment {name} is not empty"));
            }
            let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
            tx.store(&region, 8, &7u64).map_err(|e| e.to_string())?;
            tx.commit(flavour.reach()).map_err(|e| e.to_string())?;
        }
        store.close().map_err(|e| e.to_string())?;
        let report = options.check(STORE).map_err(|e| e.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
    })
}

/// Cuts the making of a store after everything it does, and fails every operation of it once. The number of
/// cases.
pub fn creation(flavour: Flavour, random: &mut Random) -> Result<u64, Failure> {
    let fail = |why: String| Failure { path: "creation".into(), why };
    let Making { make, take_up } = if flavour == Flavour::Adopted { adoption::MAKING } else { OWN };
    let mut cases = 0;
    let mut crash = |machine: &Arc<Machine<usize>>, all: bool| {
        let (mut disk, mut acknowledged) = (Disk::default(), 0);
        let journal = machine.take_journal();
        let count = journal.len();
        for (i, entry) in journal.into_iter().enumerate() {
            match entry {
                Entry::Mark(step) => acknowledged = step,
                Entry::Act(act) => disk.apply(&act),
            }
            if !all && i + 1 < count {
                continue;
            }
            let losses = [Loss::All, Loss::Nothing, Loss::Some(random.bits()), Loss::Some(random.bits())];
            let cut = losses.map(|loss| (disk.after_power_cut(loss), 9));
            for (disk, boot) in cut.into_iter().chain([(disk.clone(), 1)]) {
                cases += 1;
                take_up(disk, boot, acknowledged, flavour).map_err(|e| format!("cut after {i}: {e}"))?;
            }
        }
        Ok(())
    };
    let sound = Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
    make(&sound, flavour).map_err(fail)?;
    crash(&sound, true).map_err(fail)?;
    for at in 0..sound.operations() {
        for part in [0, 32, 64] {
            let fault = Fault { at, lasting: false, again: None, full: at % 2 == 0, part };
            let machine = Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), Some(fault));
            // Whether it was noticed or not: what was acknowledged counts.
            let _ = make(&machine, flavour);
            crash(&machine, false).map_err(|e| fail(format!("{fault:?}: {e}")))?;
        }
    }
    Ok(cases)
}
