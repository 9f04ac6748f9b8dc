//! The log on two media (Camelot, section 4.4): opened, shown, begun while the store is used, and ended.
//!
//! ```text
//!   begun   1 nothing is appended, truncated or forced any more; all that was appended is forced
//!           2 what is kept of the log is copied to the other medium, durably
//!           3 the store's list names both, durably      4 everybody writes both
//!   a medium fails: the list names the other one alone, durably, before anything more counts as forced
//!   opened  of two that the list names each gets what it lacks from the other; one that is not there, or cannot
//!           be mended, leaves the list before anything is appended
//! ```

use super::Redo;
use super::relocate::{Making, Target};
use crate::policy::kind::Opening;
use crate::storage::catalog::Catalog;
use crate::storage::copies::{self, LogCopy};
use crate::storage::directory;
use crate::storage::error::OpenError;
use crate::storage::settings::{Copies, Settings};
use caliburn_log::format::{BLOCK, STATUS_AT, Status};
use caliburn_log::log::{self, LogError};
use caliburn_log::media_error::MediaError;
use caliburn_log::mend::mend;
use caliburn_log::scan;
use caliburn_os::duplex::{Duplex, Event, Tell, is_gone};
use caliburn_os::host::{Id, Lock};
use caliburn_os::medium::{Media, Medium};
use caliburn_os::overlay::Overlay;
use caliburn_os::simulated::{instead, unless};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::little_endian::U64;

/// The log of a store, as it is opened.
pub(super) struct OpenedLog {
    pub medium: Arc<dyn Medium>,
    pub status: Status,
    pub claims: Vec<(PathBuf, Lock)>,
    /// The store was in use elsewhere.
    pub copied: bool,
    /// What the list must say before anything is appended.
    pub named: Option<Vec<LogCopy>>,
}

/// One medium of it.
struct Found {
    copy: LogCopy,
    medium: Arc<dyn Medium>,
    claim: Option<(PathBuf, Lock)>,
    status: Status,
}

impl Found {
    /// Whether it is another file than the list says.
    fn has_moved(&self) -> bool {
        self.copy.place != [0; 2] && self.medium.place().is_some_and(|place| place != self.copy.place)
    }

    /// What the list is to say of it.
    fn named(&self) -> LogCopy {
        LogCopy::of(&self.copy.path, &*self.medium)
    }
}

fn find(media: &dyn Media, dir: &Path, copy: &LogCopy, store: &Id, write: bool) -> Result<Found, OpenError> {
    let path = Catalog::resolve(dir, &copy.path);
    let medium = media.open(&path, write).map_err(OpenError::io("open log", &path))?;
    let status = log::read_status(&*medium, Some(store))?;
    Ok(Found { copy: copy.clone(), medium, claim: None, status })
}

fn claim(found: &mut Found, dir: &Path, store: &Id, write: bool) -> Result<(), OpenError> {
    let path = Catalog::resolve(dir, &found.copy.path);
    found.claim = directory::claim(&*found.medium, write)?.map(|claim| (path, claim));
    // Whoever had it by another name until now may have written since it was looked at.
    found.status = log::read_status(&*found.medium, Some(store))?;
    Ok(())
}

/// Which of the files are this store's. Whether they are others than those of then, all of them: it was copied or
/// moved, and what is outside may still be the original's, and stays as it is. Else a file that is another one was
/// put in the place of a copy, and is none.
fn leave_foreign(found: &mut Vec<Found>) -> (bool, Option<LogCopy>) {
    let inside = |one: &Found| !one.copy.path.is_absolute();
    let copied = found.iter().any(|one| inside(one) && one.has_moved()) || found.iter().all(Found::has_moved);
    let foreign = found.iter().position(|one| one.has_moved() != copied);
    let foreign = foreign.map(|number| found.remove(number));
    if let Some(one) = &foreign {
        let path = one.copy.path.display();
        tracing::warn!(%path, copied, "no copy of the log: it is the original's, or another file than it was");
    }
    (copied, foreign.filter(|_| !copied).map(|one| one.copy))
}

/// Whether a medium is gone, or holds no log of the store: then the other one may be all there is. Not if it may be
/// there, and only this process can't look.
fn is_lost(error: &OpenError) -> bool {
    match error {
        OpenError::Io { action: "open log", source, .. } => is_gone(source),
        OpenError::Log(LogError::Media(error)) => is_gone(&error.source),
        OpenError::Log(LogError::Status { .. }) => true,
        _ => false,
    }
}

/// Those of the copies that are there, of which one is enough, and why another is not.
fn find_all(
    copies: &[LogCopy],
    find: impl Fn(&LogCopy) -> Result<Found, OpenError>,
) -> Result<(Vec<Found>, Option<OpenError>), OpenError> {
    let (mut found, mut lost) = (Vec::new(), None);
    for copy in copies {
        match find(copy) {
            Ok(one) => found.push(one),
            Err(error) if is_lost(&error) && lost.is_none() => lost = Some(error),
            Err(error) => return Err(error),
        }
    }
    match (found.is_empty(), lost) {
        (true, Some(error)) => Err(error),
        (_, lost) => Ok((found, lost)),
    }
}

/// Opens it, and has two media mended.
pub(super) fn open(opening: &Opening<'_>) -> Result<OpenedLog, OpenError> {
    let (media, dir, catalog) = (opening.media(), opening.dir(), &opening.found.catalog);
    let (store, write) = (&catalog.store, opening.write());
    if catalog.copies.is_empty() {
        let copy = LogCopy::named(&catalog.log_path);
        let mut found = find(media, dir, &copy, store, write)?;
        claim(&mut found, dir, store, write)?;
        let Found { medium, claim, status, .. } = found;
        let copied = status.clean != 1 && opening.copied_from(&*medium, status.place)?;
        return Ok(OpenedLog { medium, status, claims: claim.into_iter().collect(), copied, named: None });
    }
    let (mut found, lost) = find_all(&catalog.copies, |copy| find(media, dir, copy, store, write))?;
    let mut left_out = None;
    if let Some(error) = lost {
        tracing::error!(%error, "a copy of the log is lost");
        left_out =
            catalog.copies.iter().find(|copy| found.iter().all(|one| one.copy.path != copy.path)).cloned();
    }
    let listed = found.len();
    let (moved, foreign) = leave_foreign(&mut found);
    let mut changed = left_out.is_some() || moved || found.len() < listed;
    // What was lost may be the original's, too.
    left_out = foreign.or(left_out.filter(|_| !moved));
    let mut copied = false;
    for one in &mut found {
        claim(one, dir, store, write)?;
        // One that is left of two, outside of the store, may have been put there since, and be of any age.
        let alone = one.copy.path.is_absolute() && catalog.copies.len() > listed;
        let doubtful = one.status.clean != 1 || alone;
        copied |= moved && doubtful && opening.copied_from(&*one.medium, one.copy.place.map(U64::new))?;
    }
    let mut status = found[0].status;
    if let [first, second] = &found[..] {
        if !write {
            return Ok(merged(found, copied));
        }
        let (better, lost) = mend_both(first, second)?;
        status = better;
        if let Some(lost) = lost {
            changed = true;
            left_out = Some(found.remove(lost).copy);
        }
    }
    let mut named: Vec<LogCopy> = found.iter().map(Found::named).collect();
    named.extend(left_out.map(LogCopy::lost));
    let (names, mut media) = (named.clone(), Vec::new());
    let mut claims = Vec::new();
    for one in found {
        media.push(one.medium);
        claims.extend(one.claim);
    }
    let medium: Arc<dyn Medium> = match <[_; 2]>::try_from(media) {
        Ok(both) => {
            let names = <[_; 2]>::try_from(names).expect("as many as media");
            let tell = tell(opening.settings.media.clone(), dir.to_owned(), *store, names);
            Arc::new(Duplex::new(both, tell))
        }
        Err(mut one) => one.remove(0),
    };
    Ok(OpenedLog { medium, status, claims, copied, named: changed.then_some(named) })
}

/// Gives each what it lacks, durably; what both say then, and which one can't be given it, if that is so.
fn mend_both(first: &Found, second: &Found) -> Result<(Status, Option<usize>), MediaError> {
    let older = older(first, second);
    let older = instead("older-status-counts", older, 1 - older);
    let status = if older == 0 { second.status } else { first.status };
    if first.status.capacity != second.status.capacity {
        return Ok((status, Some(older)));
    }
    let media = [&first.medium, &second.medium];
    let mut copies = media.map(|medium| &**medium as &dyn Medium);
    let done = if unless("copies-not-mended", true) { mend(copies, &status) } else { Ok([0; 2]) };
    // What one has from the other is forced before that one can be lost.
    let done = done.and_then(|mended| {
        for (number, mended) in mended.into_iter().enumerate().filter(|(_, mended)| *mended > 0) {
            let path = copies[number].path().display();
            tracing::warn!(%path, mended, "records of the log were taken from its other copy");
            force(copies[number]).map_err(|error| (number, error))?;
        }
        Ok(())
    });
    let Err((lost, error)) = done else { return Ok((status, None)) };
    tracing::error!(%error, "a copy of the log is lost: it can't be mended");
    // It may still have what the other one lacks.
    let overlay = Overlay::new(media[lost].clone());
    copies[lost] = &overlay;
    mend(copies, &status).map_err(|(_, error)| error)?;
    force(copies[1 - lost])?;
    Ok((status, Some(lost)))
}

fn force(medium: &dyn Medium) -> Result<(), MediaError> {
    medium.sync().map_err(|error| MediaError::new("force the log", medium, 0, error))
}

/// Which of two lags, if one does.
fn older(first: &Found, second: &Found) -> usize {
    usize::from(first.status.generation.get() >= second.status.generation.get())
}

/// The log as both together have it, with neither written.
fn merged(mut found: Vec<Found>, copied: bool) -> OpenedLog {
    // Its status is the one that is read.
    if older(&found[0], &found[1]) == 0 {
        found.swap(0, 1);
    }
    let better = &found[0];
    let (status, capacity) = (better.status, better.status.capacity);
    let overlays = [&found[0], &found[1]].map(|one| Arc::new(Overlay::new(one.medium.clone())));
    let medium: Arc<dyn Medium> = match found.iter().all(|one| one.status.capacity == capacity) {
        true => {
            _ = mend([&*overlays[0], &*overlays[1]], &status);
            Arc::new(Duplex::new(overlays.map(|overlay| overlay as Arc<dyn Medium>), Box::new(|_| Ok(()))))
        }
        false => better.medium.clone(),
    };
    let claims = found.into_iter().filter_map(|one| one.claim).collect();
    OpenedLog { medium, status, claims, copied, named: None }
}

/// A log of which nothing is written.
pub(super) struct ShownLog {
    pub medium: Arc<dyn Medium>,
    /// The one that tells whether the store was copied, and what was recorded of its place.
    pub witness: (Arc<dyn Medium>, [U64; 2]),
    /// What is amiss with one of two copies.
    pub note: Option<String>,
}

/// The log of a store that nobody writes, which is at `log_path` if there are no copies.
pub(super) fn show(
    media: &dyn Media,
    dir: &Path,
    store: &Id,
    log_path: &Path,
    copies: &[LogCopy],
) -> Result<ShownLog, OpenError> {
    if copies.is_empty() {
        let path = Catalog::resolve(dir, log_path);
        let medium = media.open(&path, false).map_err(OpenError::io("open log", &path))?;
        let place = log::read_status(&*medium, Some(store)).map(|status| status.place).unwrap_or_default();
        return Ok(ShownLog { witness: (medium.clone(), place), medium, note: None });
    }
    let (mut found, lost) = find_all(copies, |copy| find(media, dir, copy, store, false))?;
    leave_foreign(&mut found);
    let note = lost.map(|error| format!("one of two copies of the log is lost: {error}"));
    let one = &found[0];
    let witness = (one.medium.clone(), one.copy.place.map(U64::new));
    let medium = match found.len() {
        2 => merged(found, false).medium,
        _ => found[0].medium.clone(),
    };
    Ok(ShownLog { medium, witness, note })
}

/// A medium, and another one.
type OneAndOther = (Arc<dyn Medium>, Option<Arc<dyn Medium>>);

/// A copy that can be read, of a log that somebody may be writing, and the other one.
pub(super) fn one_of(media: &dyn Media, dir: &Path, catalog: &Catalog) -> Result<OneAndOther, OpenError> {
    let open = |path: &Path| {
        let path = Catalog::resolve(dir, path);
        let medium = media.open(&path, false).map_err(OpenError::io("open log", &path))?;
        log::read_status(&*medium, Some(&catalog.store))?;
        Ok::<_, OpenError>(medium)
    };
    let [first, second] = &catalog.copies[..] else {
        let path = Catalog::resolve(dir, &catalog.log_path);
        return Ok((media.open(&path, false).map_err(OpenError::io("open log", &path))?, None));
    };
    match (open(&first.path), open(&second.path)) {
        (Ok(one), other) => Ok((one, other.ok())),
        (Err(error), Ok(other)) if is_lost(&error) => Ok((other, None)),
        (Err(error), _) => Err(error),
    }
}

/// What a duplex tells: the list of the store in `dir` names what is left of `copies`.
fn tell(media: Arc<dyn Media>, dir: PathBuf, store: Id, copies: [LogCopy; 2]) -> Tell {
    Box::new(move |event| match event {
        Event::Lost(number, error) => {
            let path = copies[number].path.display();
            tracing::error!(%path, %error, "a copy of the log is lost: the other one is the only one from now on");
            let left = [copies[1 - number].clone(), copies[number].clone().lost()];
            copies::write(&*media, &dir, store, &left).map_err(|error| io::Error::other(error.to_string()))
        }
        Event::Mended(number) => {
            let path = copies[number].path.display();
            tracing::warn!(%path, "a record of the log was damaged, and was taken from its other copy");
            Ok(())
        }
    })
}

impl Redo {
    /// Whether the log has, or had, two media: then it keeps its size and place.
    pub(super) fn is_duplex(&self) -> bool {
        self.storage.media.exists(&self.storage.dir.join(copies::COPIES))
    }

    /// Gives the log a second medium, if options say so.
    pub(super) fn duplex(&self, settings: &Settings, opening: bool) -> Result<(), OpenError> {
        let Copies::Two(path) = &settings.copies else { return Ok(()) };
        let _one = self.relocating.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let had_two = self.is_duplex();
        match self.begin_duplex(path) {
            // It was lost when the program could not be asked.
            Err(error) if opening && had_two => {
                tracing::error!(%error, "the log has one copy");
                self.storage.failure().map_err(|failure| self.failed(failure))
            }
            done => done,
        }
    }

    /// Takes the second one from it, if options say so.
    pub(super) fn simplex(&self, settings: &Settings) -> Result<(), OpenError> {
        let _one = self.relocating.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !matches!(settings.copies, Copies::One) || !self.is_duplex() {
            return Ok(());
        }
        self.hold_up("give the log one copy in", &self.storage.dir, || self.keep_one())
    }

    /// Those that it has, and the one that it has lost.
    fn copies(&self) -> Result<(Vec<LogCopy>, Option<LogCopy>), OpenError> {
        let storage = &self.storage;
        let listed = copies::read(&*storage.media, &storage.dir, &storage.id)?;
        let (lost, mut used): (Vec<_>, Vec<_>) = listed.into_iter().partition(|copy| copy.lost);
        if used.is_empty() {
            let path = storage.catalog.lock().expect("no panic under this lock").log_path.clone();
            used.push(LogCopy::named(&path));
        }
        Ok((used, lost.into_iter().next()))
    }

    fn resolve(&self, copy: &LogCopy) -> PathBuf {
        Catalog::resolve(&self.storage.dir, &copy.path)
    }

    /// One of those that are written now.
    fn medium_of(&self, copy: &LogCopy) -> Arc<dyn Medium> {
        let (medium, path) = (self.log.medium(), self.resolve(copy));
        let its = medium.pair().and_then(|pair| pair.copies().iter().find(|one| one.path() == path));
        its.cloned().unwrap_or(medium)
    }

    /// Holds everybody up, with all that was appended forced, while `act` changes where the log is.
    fn hold_up(
        &self,
        action: &'static str,
        path: &Path,
        act: impl FnOnce() -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        let Some((mut unforced, work)) = self.lock_both() else {
            let text = "commits wait for room in the log: archive what is kept, or end what keeps it from being truncated, then try again";
            return Err(OpenError::io(action, path)(io::Error::other(text)));
        };
        let sound = self.storage.failure().map_err(|failure| self.failed(failure));
        let done = sound
            .and_then(|()| self.log.force().map_err(|error| self.failed(self.fail(error))))
            .and_then(|()| act());
        drop(work);
        self.rounds.wake_all();
        done?;
        self.force_segments(&mut unforced).map_err(|failure| self.failed(failure))
    }

    fn begin_duplex(&self, path: &Path) -> Result<(), OpenError> {
        let path = std::path::absolute(path).map_err(OpenError::io("resolve", path))?;
        let (storage, capacity, (used, lost)) = (&self.storage, self.log.capacity(), self.copies()?);
        // What only the list names, nobody has listed.
        storage.media.list_outside(&path);
        let there = used.iter().any(|copy| self.resolve(copy) == path);
        if there && used.len() == 2 {
            return Ok(());
        }
        let again = lost.filter(|lost| there || self.resolve(lost) == path);
        let path = match (&again, there) {
            (Some(lost), _) => lost.path.clone(),
            (None, false) => path,
            (None, true) => {
                let text = "the log is there already, and needs another medium for its copy";
                return Err(OpenError::io("use", &path)(io::Error::new(io::ErrorKind::InvalidInput, text)));
            }
        };
        // What is made there may be written over by another attempt.
        let write = |copies: &[LogCopy]| copies::write(&*storage.media, &storage.dir, storage.id, copies);
        let note = |path: &Path| write(&[&used[..1], &[LogCopy::named(path).lost()]].concat());
        let note = (again.is_none() && used.len() == 1).then_some(&note as &dyn Fn(&Path) -> _);
        let listed = self.is_duplex();
        let target_path = Catalog::resolve(&storage.dir, &path);
        let target = self.make_target(Some(path), capacity, Making::Copy { again: again.is_some(), note });
        let done = target.and_then(|target| {
            let done = self.hold_up("copy the log to", &target.path, || self.copy_log(&target));
            if done.is_err() && storage.failure().is_ok() {
                target.forget(&*storage.media, &storage.dir);
            }
            done.map(|()| target)
        });
        let media = &*storage.media;
        let above = target_path.parent().unwrap_or(&storage.dir);
        let gone = || !media.exists(&target_path) && media.sync_directory(above).is_ok();
        if done.is_err() && !listed && storage.failure().is_ok() && self.is_duplex() && gone() {
            // The catalog says where the log is.
            copies::remove(media, &storage.dir)?;
        }
        let target = done?;
        let path = Catalog::resolve(&storage.dir, &target.path);
        storage.claim_copy(target.claim.map(|claim| (path, claim)));
        Ok(())
    }

    /// Steps 2 to 4, by the holder of the truncation lock and the flush lock.
    fn copy_log(&self, target: &Target) -> Result<(), OpenError> {
        let (storage, log) = (&self.storage, &self.log);
        // One may have been lost since, and as late as by that force.
        let (used, _) = self.copies()?;
        let (one, other) = (self.medium_of(&used[0]), target.medium.clone());
        // The one that is copied has all of it.
        scan::verify(&*log.medium(), log.capacity(), log.kept()..log.tail())?;
        log.copy_to(&*other, target.bytes, [0; 2])?;
        let both = [LogCopy::of(&used[0].path, &*one), LogCopy::of(&target.path, &*other)];
        let given_up = used.get(1).map(|copy| (self.resolve(copy), self.medium_of(copy)));
        // Of a list that may be the one or the other nobody knows which media count.
        let written = copies::write(&*storage.media, &storage.dir, storage.id, &both);
        written.map_err(|error| self.failed(self.fail(error)))?;
        let tell = tell(storage.media.clone(), storage.dir.clone(), storage.id, both);
        log.move_to(Arc::new(Duplex::new([one, other], tell)), target.bytes);
        if let Some((path, medium)) = given_up {
            self.give_up(&path, &*medium);
        }
        tracing::info!(path = %target.path.display(), "the log has a second copy");
        Ok(())
    }

    /// It holds no log any more.
    fn give_up(&self, path: &Path, medium: &dyn Medium) {
        let wiped = STATUS_AT.map(|at| medium.write_at(&[0; BLOCK], at));
        let _ = wiped.into_iter().collect::<io::Result<()>>().and_then(|()| medium.sync());
        self.storage.drop_claim(path);
    }

    fn keep_one(&self) -> Result<(), OpenError> {
        let (storage, log) = (&self.storage, &self.log);
        let (media, dir) = (&*storage.media, &storage.dir);
        let failed = |error| self.failed(self.fail(error));
        let (mut used, _) = self.copies()?;
        // Before the other one is gone, it has all of it.
        let live = log.kept()..log.tail();
        let is_whole = |copy: &LogCopy| scan::verify(&*self.medium_of(copy), log.capacity(), live.clone());
        scan::verify(&*log.medium(), log.capacity(), live.clone()).map_err(failed)?;
        if used.len() == 2 && is_whole(&used[0]).is_err() {
            used.swap(0, 1);
        }
        is_whole(&used[0])?;
        let kept = self.medium_of(&used[0]);
        let given_up = used.get(1).map(|copy| (self.resolve(copy), self.medium_of(copy)));
        let named = LogCopy::of(&used[0].path, &*kept);
        // Until it is wiped, who is killed must be able to tell it from another store's.
        let lost = used.get(1).cloned().map(LogCopy::lost);
        let listed: Vec<LogCopy> = [named.clone()].into_iter().chain(lost).collect();
        copies::write(media, dir, storage.id, &listed).map_err(failed)?;
        log.move_to(kept, log.capacity());
        log.write_place().map_err(failed)?;
        let mut catalog = storage.catalog.lock().expect("no panic under this lock");
        storage.change_catalog(&mut catalog, |catalog| catalog.log_path.clone_from(&named.path))?;
        if let Some((path, medium)) = given_up {
            self.give_up(&path, &*medium);
        }
        copies::remove(media, dir).map_err(failed)?;
        drop(catalog);
        tracing::info!(path = %named.path.display(), "the log has one copy");
        Ok(())
    }
}
