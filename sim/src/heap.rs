//! Heaps on simulated machines: after everything that a workload does to its disk, the process is killed and
//! the power cut; what is left must be the heap as some commit left it, none acknowledged missing.

use crate::disk::{Act, Disk, Loss};
use crate::explore::Failure;
use crate::life::{Flavour, LifeMachine, STORE, is_lost, options};
use crate::media::{Entry, Machine};
use crate::model::{Bounds, Mark};
use crate::random::Random;
use caliburn::heap::{Heap, HeapTransaction, Place, Savepoint};
use caliburn::{Class, Store};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The heap after some commit: objects with what they hold, and what the root names.
#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    objects: BTreeMap<Place, Arc<[u8]>>,
    root: Option<Place>,
    /// A prepared transaction that is undecided.
    undecided: Option<Arc<Undecided>>,
}

/// What it did.
#[derive(Debug, Default, PartialEq)]
struct Undecided {
    id: [u8; 8],
    taken: BTreeMap<Place, Arc<[u8]>>,
    freed: Vec<Place>,
    /// Of the objects that it took and freed at once.
    passing: usize,
}

impl State {
    /// The state when that is decided.
    fn decided(&self, commit: bool) -> State {
        let mut state = self.clone();
        if let Some(undecided) = state.undecided.take().filter(|_| commit) {
            undecided.freed.iter().for_each(|place| _ = state.objects.remove(place));
            state.objects.extend(undecided.taken.clone());
        }
        state
    }
}

type Step = Result<(), String>;

/// What a transaction is to have done: the state, what it freed, and how many objects it took and freed at once.
type Undone = (State, Vec<Place>, usize);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Bytes of an object: of few classes, so that spans fill and become empty, or of whole spans.
fn len(random: &mut Random) -> u64 {
    *random.pick(&[16, 48, 700, 700, 5000, 20_000, 70_000])
}

/// Leaves a savepoint behind. What was before it, if it is rolled back to.
fn left<T>(
    tx: &mut HeapTransaction<'_>,
    savepoint: &Savepoint,
    before: T,
    random: &mut Random,
) -> Result<Option<T>, String> {
    let rolls = random.chance(1, 2);
    if rolls {
        tx.rollback_to(savepoint).map_err(text)?;
    }
    tx.release(savepoint).map_err(text)?;
    Ok(rolls.then_some(before))
}

/// One transaction; the state if it commits.
fn transaction(
    heap: &Heap,
    before: &State,
    number: u64,
    may_prepare: bool,
    random: &mut Random,
) -> Result<Option<State>, String> {
    let mut state = before.clone();
    let held = |place: &Place| {
        before.undecided.iter().any(|u| u.freed.contains(place) || u.taken.contains_key(place))
    };
    let prepares = may_prepare && before.undecided.is_none() && random.chance(1, 3);
    let (mut freed, mut passing) = (Vec::new(), 0);
    let mut tx = heap.begin().map_err(text)?;
    let mut saved: Option<(Savepoint, Undone)> = None;
    for i in 0..1 + random.below(6) {
        if saved.is_none() && random.chance(1, 4) {
            saved = Some((tx.savepoint().map_err(text)?, (state.clone(), freed.clone(), passing)));
        } else if saved.is_some()
            && random.chance(1, 3)
            && let Some((savepoint, before)) = saved.take()
            && let Some(before) = left(&mut tx, &savepoint, before, random)?
        {
            (state, freed, passing) = before;
        }
        let some = random.below(state.objects.len().max(1) as u64) as usize;
        let place = state.objects.keys().nth(some).copied().filter(|place| !held(place));
        match (random.below(5), place) {
            (0 | 1, Some(place)) if prepares && state.root == Some(place) => {}
            (2, Some(_)) if prepares => {}
            (0 | 1, Some(place)) => {
                tx.free(place).map_err(text)?;
                match before.objects.contains_key(&place) {
                    true => freed.push(place),
                    false => passing += 1,
                }
                state.objects.remove(&place);
                if state.root == Some(place) {
                    tx.set_root("root", None).map_err(text)?;
                    state.root = None;
                }
            }
            (2, Some(place)) => {
                tx.set_root("root", Some(place)).map_err(text)?;
                state.root = Some(place);
            }
            _ => {
                let len = len(random);
                let place = tx.allocate(len as usize).map_err(text)?;
                if state.objects.contains_key(&place) || before.objects.contains_key(&place) || held(&place) {
                    return Err(format!("{place:?} was allocated twice"));
                }
                let bytes: Arc<[u8]> =
                    (0..len.min(300)).map(|at| (number * 31 + i * 7 + at) as u8 | 1).collect();
                tx.write(place, 0, &bytes).map_err(text)?;
                // What is freed at once leaves no trace.
                match random.chance(1, 4) {
                    true => {
                        tx.free(place).map_err(text)?;
                        passing += 1;
                    }
                    false => drop(state.objects.insert(place, bytes)),
                }
            }
        }
    }
    if random.chance(1, 5) {
        tx.abort();
        return Ok(None);
    }
    let taken: BTreeMap<_, _> = state
        .objects
        .iter()
        .filter(|(place, _)| !before.objects.contains_key(place))
        .map(|(p, o)| (*p, o.clone()))
        .collect();
    // What a crash leaves of one that has changed nothing says nothing.
    if prepares && taken.len() + freed.len() + passing > 0 {
        let id = number.to_be_bytes();
        tx.prepare(&id).map_err(text)?;
        let undecided = Undecided { id, taken, freed, passing };
        return Ok(Some(State { undecided: Some(Arc::new(undecided)), ..before.clone() }));
    }
    tx.commit(Class::Process).map_err(text)?;
    Ok(Some(state))
}

/// Decides what is undecided, if anything is.
fn decide(heap: &Heap, state: &State, commit: bool) -> Result<State, String> {
    if let Some(undecided) = &state.undecided {
        let decide = if commit { Heap::commit_prepared } else { Heap::abort_prepared };
        decide(heap, &undecided.id).map_err(text)?;
    }
    Ok(state.decided(commit))
}

/// Whether the heap is as that state says.
fn is(heap: &Heap, state: &State) -> bool {
    let statistics = heap.statistics();
    let count = statistics.classes.iter().map(|c| c.objects).sum::<u64>() + statistics.large_objects;
    let holds = |(place, bytes): (&Place, &Arc<[u8]>)| {
        let mut there = vec![0; bytes.len()];
        let allocated = heap.usable_len(*place).is_ok();
        allocated && {
            heap.region().read(place.0 as usize, &mut there);
            there[..] == bytes[..]
        }
    };
    let undecided = state.undecided.as_deref();
    // Of an undecided transaction the list, and what it took, are there as well, and what it freed; but nobody else
    // can use that.
    let more = undecided.map_or(0, |u| 1 + u.taken.len() + u.passing) as u64;
    let kept = |place: &Place| undecided.is_some_and(|u| u.freed.contains(place));
    // Decided, a transaction is off the heap's list when the heap is told, and after a crash when it is opened.
    let named = heap.prepared().iter().map(|id| &id[..]).eq(undecided.iter().map(|u| &u.id[..]));
    named
        && count == state.objects.len() as u64 + more
        && heap.root("root") == state.root
        && state.objects.iter().filter(|(place, _)| !kept(place)).all(holds)
}

/// Lives so many transactions, and looks at the crashes. The number of images.
pub fn heap(flavour: Flavour, seed: u64, transactions: u64, share: u64) -> Result<u64, Failure> {
    let fail = |why: String| Failure { path: format!("heap, seed {seed}"), why };
    let mut random = Random::new(seed);
    let machine: Arc<LifeMachine> = Machine::new(Disk::default(), [1; 16], 1 << 40, flavour.hardware(), None);
    let mut states = vec![State::default()];
    machine.run(|| live(&machine, flavour, transactions, &mut states, &mut random)).map_err(fail)?;

    let (mut disk, mut bounds, mut images) = (Disk::default(), Bounds::exactly(0, 0), 0);
    let (mut begun, mut seen) = (false, HashSet::new());
    for (i, entry) in machine.take_journal().iter().enumerate() {
        match entry {
            Entry::Mark(mark) => {
                begun = true;
                bounds.note(*mark);
            }
            Entry::Act(act) => {
                disk.apply(act);
                if !begun || !random.chance(share, 64) {
                    continue;
                }
                let power = [Loss::All, Loss::Nothing, Loss::Some(random.bits())].map(Some);
                let volatile = matches!(act, Act::Store(..)) || flavour == Flavour::Undo;
                let losses = if volatile { &[None][..] } else { &[None, power[0], power[1], power[2]] };
                for loss in losses {
                    let image = loss.map_or_else(|| disk.clone(), |loss| disk.after_power_cut(loss));
                    let oldest = if loss.is_some() { bounds.power } else { bounds.process };
                    if !seen.insert((image.digest(), oldest, bounds.highest, loss.is_some())) {
                        continue;
                    }
                    let possible = &states[oldest..=bounds.highest];
                    let again = Machine::new(
                        image,
                        [1 + u8::from(loss.is_some()); 16],
                        1 << 41,
                        flavour.hardware(),
                        None,
                    );
                    again
                        .run(|| look(&again, flavour, possible))
                        .map_err(|e| fail(format!("cut after {i}, {loss:?}: {e}")))?;
                    images += 1;
                }
            }
        }
    }
    Ok(images)
}

fn live(
    machine: &Arc<LifeMachine>,
    flavour: Flavour,
    transactions: u64,
    states: &mut Vec<State>,
    random: &mut Random,
) -> Step {
    let store: Store = options(machine, 50, flavour).open(STORE).map_err(text)?;
    let heap = Heap::open(&store, "heap").map_err(text)?;
    // The heap is there from here on.
    store.truncate().map_err(text)?;
    machine.mark(Mark::Forced(0));
    for number in 0..transactions {
        let next = states.len();
        machine.mark(Mark::Begun(next));
        // An aborted one is the state before once more.
        let decides = states[next - 1].undecided.is_some() && random.chance(1, 2);
        let state = match decides {
            true => Some(decide(&heap, &states[next - 1], random.chance(1, 2))?),
            false => transaction(&heap, &states[next - 1], number, true, random)?,
        };
        states.push(state.unwrap_or_else(|| states[next - 1].clone()));
        let durable = flavour == Flavour::Persistent || states[next].undecided != states[next - 1].undecided;
        machine.mark(if durable { Mark::Forced(next) } else { Mark::Committed(next) });
        if flavour == Flavour::Redo {
            store.tend_flush(random.chance(1, 2)).map_err(text)?;
            store.tend_truncation().map_err(text)?;
            if number % 8 == 7 {
                store.truncate().map_err(text)?;
                machine.mark(Mark::Forced(next));
            }
        }
        heap.check().map_err(text)?;
        if !is(&heap, &states[next]) {
            return Err(format!("after transaction {number} the heap is not as it was left"));
        }
    }
    Ok(())
}

/// Opens what is left and compares; then uses it.
fn look(machine: &Arc<LifeMachine>, flavour: Flavour, possible: &[State]) -> Step {
    let store = match options(machine, 50, flavour).create(false).open(STORE) {
        Err(error) if flavour == Flavour::Undo && is_lost(&error.to_string()) => return Ok(()),
        other => other.map_err(text)?,
    };
    let heap = Heap::open(&store, "heap").map_err(text)?;
    heap.check().map_err(text)?;
    let Some(found) = possible.iter().rev().find(|state| is(&heap, state)) else {
        return Err(format!(
            "the heap is that of none of {} commits; it holds {:?}, the newest {} objects",
            possible.len(),
            heap.statistics(),
            possible[possible.len() - 1].objects.len()
        ));
    };
    let mut random = Random::new(found.objects.len() as u64);
    let found = decide(&heap, found, random.chance(1, 2))?;
    if !is(&heap, &found) {
        return Err(format!("decided, the heap is not as it should be: it holds {:?}", heap.statistics()));
    }
    for number in 0..3 {
        if transaction(&heap, &found, 1000 + number, false, &mut random)?.is_some() {
            break;
        }
    }
    heap.check().map_err(text)
}
