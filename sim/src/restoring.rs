//! Crashes while a store is restored, and while that is tried again: the same command works in the end, and what it
//! makes is whole.

use crate::disk::{Disk, Loss};
use crate::explore::Failure;
use crate::life::{Flavour, SEGMENT, STORE, options};
use crate::media::{Entry, Machine};
use crate::random::Random;
use caliburn::{Class, DumpOptions, Mode, RestoreOptions};
use std::sync::Arc;

type Restoring = Machine<()>;

fn machine(disk: Disk, boot: u8, flavour: Flavour) -> Arc<Restoring> {
    Machine::new(disk, [boot; 16], u64::from(boot) << 41, flavour.hardware(), None)
}

/// A dump of a store with a few words.
fn dumped(flavour: Flavour) -> Result<Vec<u8>, String> {
    let machine = machine(Disk::default(), 1, flavour);
    machine.run(|| {
        let store = options(&machine, 50, flavour).open(STORE).map_err(|e| e.to_string())?;
        for name in ["a", "b"] {
            let segment = store.segment_or_create(name, SEGMENT).map_err(|e| e.to_string())?;
            let region = segment.map_all().map_err(|e| e.to_string())?;
            let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
            tx.store(&region, 8, &7u64).map_err(|e| e.to_string())?;
            tx.commit(Class::Process).map_err(|e| e.to_string())?;
        }
        let mut dump = Vec::new();
        store.dump(&DumpOptions::new(), &mut dump).map_err(|e| e.to_string())?;
        Ok(dump)
    })
}

/// Restores, and checks.
fn restore(machine: &Arc<Restoring>, dump: &[u8], flavour: Flavour) -> Result<(), String> {
    machine.run(|| {
        let mut how = RestoreOptions::new();
        let options = options(machine, 50, flavour);
        options.restore(&mut &dump[..], how.checked(true), STORE).map(drop).map_err(|e| e.to_string())
    })
}

/// What was restored is whole, and takes changes.
fn used(machine: &Arc<Restoring>, flavour: Flavour) -> Result<(), String> {
    machine.run(|| {
        let mut options = options(machine, 50, flavour);
        let store = options.create(false).open(STORE).map_err(|e| e.to_string())?;
        for name in ["a", "b"] {
            let segment = store.segment(name).map_err(|e| e.to_string())?;
            let region = segment.map_all().map_err(|e| e.to_string())?;
            if region.load::<u64>(8) != 7 {
                return Err(format!("segment {name} is not what was dumped"));
            }
            let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
            tx.store(&region, 16, &8u64).map_err(|e| e.to_string())?;
            tx.commit(flavour.reach()).map_err(|e| e.to_string())?;
        }
        store.close().map_err(|e| e.to_string())
    })
}

/// What is done with a disk that a crash left: the boot after it, and at which action of the journal it came.
type After<'a> = dyn FnMut(Disk, u8, usize, &mut Random) -> Result<(), String> + 'a;

/// What every crash leaves of what a machine has done since it had this disk.
fn each_crash(
    machine: &Arc<Restoring>,
    mut disk: Disk,
    random: &mut Random,
    each: &mut After,
) -> Result<(), String> {
    for (at, entry) in machine.take_journal().into_iter().enumerate() {
        let Entry::Act(act) = entry else { continue };
        disk.apply(&act);
        let losses = [Loss::All, Loss::Nothing, Loss::Some(random.bits())];
        for loss in losses {
            each(disk.after_power_cut(loss), 9, at, random)?;
        }
        each(disk.clone(), 1, at, random)?;
    }
    Ok(())
}

/// Cuts restoring after everything it does, and once more when it is tried again. The number of cases.
pub fn restoring(flavour: Flavour, random: &mut Random) -> Result<u64, Failure> {
    if !matches!(flavour, Flavour::Redo | Flavour::Undo | Flavour::Persistent | Flavour::Shadow) {
        return Ok(0);
    }
    let fail = |why: String| Failure { path: "restoring".into(), why };
    let dump = dumped(flavour).map_err(fail)?;
    let mut cases = 0;
    let first = machine(Disk::default(), 1, flavour);
    restore(&first, &dump, flavour).map_err(fail)?;
    let mut again = |disk: Disk, boot: u8, at: usize, random: &mut Random| {
        let second = machine(disk.clone(), boot, flavour);
        match restore(&second, &dump, flavour) {
            // It had come to its end.
            Err(why) if why.contains("already holds") => {
                cases += 1;
                return used(&second, flavour).map_err(|e| format!("cut after {at}, refused ({why}): {e}"));
            }
            done => done.map_err(|e| format!("cut after {at}: {e}"))?,
        }
        let chosen = random.below(40);
        let mut number = 0;
        each_crash(&second, disk, random, &mut |disk, boot, later, _| {
            number += 1;
            if number % 40 != chosen {
                return Ok(());
            }
            cases += 1;
            let third = machine(disk, boot, flavour);
            match restore(&third, &dump, flavour) {
                Err(why) if why.contains("already holds") => {}
                done => done.map_err(|e| format!("cut after {at}, then after {later}: {e}"))?,
            }
            used(&third, flavour).map_err(|e| format!("cut after {at}, then after {later}: {e}"))
        })?;
        used(&second, flavour).map_err(|e| format!("cut after {at}: {e}"))
    };
    each_crash(&first, Disk::default(), random, &mut again).map_err(fail)?;
    Ok(cases)
}
