//! Crashes while a store takes over a file as it is, and again after the program has made it longer: the
//! program forces nothing, so that what was acknowledged rests upon what the store forced of the file's name
//! and length.

use crate::disk::Disk;
use crate::life::{ADOPTED, Flavour, LifeMachine, SEGMENT, STORE, options};
use crate::making::Making;
use crate::media::{Machine, MachineMedia};
use caliburn::{Class, Mode, Store};
use caliburn_os::medium::Media;
use std::path::Path;
use std::sync::Arc;

pub const MAKING: Making = Making { make, take_up };

const GROWN: u64 = 2 * SEGMENT;
/// Where each commit stores its own number: in the last bytes of the file as it was then.
const COMMITS: [(u64, u64); 2] = [(3, SEGMENT - 8), (5, GROWN - 8)];

/// Store, adoption, commit, adoption of the longer file, commit in what was added: five steps.
fn make(machine: &Arc<Machine<usize>>, flavour: Flavour) -> Result<(), String> {
    machine.run(|| {
        let store = options(machine, 50, flavour).open(STORE).map_err(|e| e.to_string())?;
        machine.mark(1);
        let mut file = MachineMedia(machine.clone()).create(Path::new(ADOPTED)).map_err(|e| e.to_string())?;
        for (step, at) in COMMITS {
            file.set_len(at + 8).map_err(|e| e.to_string())?;
            let segment = store.adopt_segment(ADOPTED).map_err(|e| e.to_string())?;
            machine.mark(step as usize - 1);
            commit(&store, &segment, step, at)?;
            machine.mark(step as usize);
            file = MachineMedia(machine.clone()).open(Path::new(ADOPTED), true).map_err(|e| e.to_string())?;
        }
        store.close().map_err(|e| e.to_string())
    })
}

fn commit(store: &Store, segment: &caliburn::Segment, value: u64, at: u64) -> Result<(), String> {
    let region = segment.map_all().map_err(|e| e.to_string())?;
    let mut tx = store.begin(Mode::Restore).map_err(|e| e.to_string())?;
    tx.store(&region, at as usize, &value).map_err(|e| e.to_string())?;
    tx.commit(Class::Power).map_err(|e| e.to_string())
}

/// Opens what is left and reads it; makes the file only as long as nobody was told that it is the store's.
fn take_up(disk: Disk, boot: u8, acknowledged: usize, flavour: Flavour) -> Result<(), String> {
    let machine: Arc<LifeMachine> =
        Machine::new(disk, [boot; 16], u64::from(boot) << 41, flavour.hardware(), None);
    machine.run(|| {
        let mut options = options(&machine, 50, flavour);
        let store = options.create(acknowledged == 0).open(STORE).map_err(|e| format!("the store: {e}"))?;
        if acknowledged < 2 {
            longer(&machine, SEGMENT)?;
        }
        let segment = store.adopt_segment(ADOPTED).map_err(|e| format!("the file: {e}"))?;
        let wanted = if acknowledged < 4 { SEGMENT } else { GROWN };
        if segment.len() < wanted {
            return Err(format!("the file is {} bytes long and was {wanted}", segment.len()));
        }
        let region = segment.map_all().map_err(|e| e.to_string())?;
        for (step, at) in COMMITS.into_iter().filter(|(_, at)| *at < segment.len()) {
            let mut bytes = [0; 8];
            region.read(at as usize, &mut bytes);
            let (found, there) = (u64::from_le_bytes(bytes), acknowledged as u64 >= step);
            if found != step && (there || found != 0) {
                return Err(format!("{found} is where commit {step} was"));
            }
        }
        region.unmap().map_err(|e| format!("{e:?}"))?;
        // And it goes on.
        longer(&machine, GROWN)?;
        let segment = store.adopt_segment(ADOPTED).map_err(|e| format!("once more: {e}"))?;
        commit(&store, &segment, 9, GROWN - 8)?;
        store.close().map_err(|e| e.to_string())?;
        let report = options.check(STORE).map_err(|e| e.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
    })
}

/// Makes the file, or makes it longer, as the program would.
fn longer(machine: &Arc<LifeMachine>, len: u64) -> Result<(), String> {
    let (media, path) = (MachineMedia(machine.clone()), Path::new(ADOPTED));
    let file = media.open(path, true).or_else(|_| media.create(path)).map_err(|e| e.to_string())?;
    if file.len().map_err(|e| e.to_string())? < len {
        file.set_len(len).map_err(|e| e.to_string())?;
    }
    Ok(())
}
