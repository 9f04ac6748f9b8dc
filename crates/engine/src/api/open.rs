//! Opening a store, and creating one: what does not depend on its policy. The rest of recovery is the policy's.

use crate::api::options::Options;
use crate::api::shared::Shared;
use crate::policy::kind::{Kind, New, Opening, Policy};
use crate::policy::table;
use crate::storage::directory::{self, CATALOG, LOCK, LOG, SHADOW, STAGE, UNDO};
use crate::storage::error::OpenError;
use crate::storage::generations::{GENERATIONS, Generations};
use crate::storage::opener::Opener;
use crate::storage::pool::Pool;
use crate::storage::segment_file::Descriptors;
use crate::storage::settings::BeforeImages;
use crate::storage::settings::Settings;
use crate::storage::{self, attempt};
use crate::tracking::Tracking;
use caliburn_os::host::Lock;
use caliburn_os::simulated::{planted, unless};
use std::path::Path;
use std::sync::Arc;

/// Opens or creates the store as the options say.
pub(super) fn open(dir: &Path, options: &Options) -> Result<Arc<Shared>, OpenError> {
    let _span = tracing::info_span!("open", store = %dir.display()).entered();
    let settings = &options.settings;
    let may_create = (options.create_new || options.create) && !settings.read_only;
    let media = &*settings.media;
    let there = || media.exists(&dir.join(CATALOG));
    if may_create && !there() {
        tracks(table::kind(options.policy.unwrap_or(Policy::Redo)), options)?;
    }
    let made_dir = may_create && !media.exists(dir);
    if made_dir {
        let missing: Vec<&Path> = dir.ancestors().take_while(|above| !media.exists(above)).collect();
        media.create_directory(dir).map_err(OpenError::io("create directory", dir))?;
        // The store's own name is forced when it is complete.
        for above in missing.iter().skip(1).filter_map(|made| made.parent()) {
            media.sync_directory(above).map_err(OpenError::io("force directory", above))?;
        }
    } else if !may_create && !there() {
        return Err(OpenError::NotAStore { path: dir.to_owned() });
    }
    if may_create && !there() {
        // Before a lock file is put among files of another kind. Segments of a store that was finished at
        // this very moment are none.
        directory::only_ours(media, dir).or_else(|error| if there() { Ok(()) } else { Err(error) })?;
    }
    let mut options = options.clone();
    options.settings.media = directory::hold(dir, settings)?;
    // What is found when a transaction commits, or could not be kept, is in memory before it is declared.
    options.settings.declared_only |= options.wanted().tracking != Tracking::Declared;
    if options.wanted().tracking != Tracking::Fault || options.settings.pool.is_some() {
        // Who declares may have other threads store to what is declared, and nobody would stop them.
        options.settings.before_images = BeforeImages::Eager;
    }
    let (settings, media) = (&options.settings, &*options.settings.media);
    let there = || media.exists(&dir.join(CATALOG));
    // What is there is looked at under the lock: another process may be creating or removing it.
    let lock = directory::lock(media, dir, settings.read_only)?;
    let there = there();
    if there && options.create_new {
        return Err(OpenError::Exists { path: dir.to_owned() });
    }
    if !there && may_create {
        create(dir, &options, made_dir)?;
    }
    recover(dir, &options, lock)
}

/// Refuses to look for changes where memory is the segment: what it held would be known no more. A pool takes the
/// log of before-images.
fn tracks(kind: &dyn Kind, options: &Options) -> Result<(), OpenError> {
    let policy = kind.policy();
    if let Some(pool) = options.settings.pool.filter(|_| policy != Policy::Shadow) {
        let why = format!("the {} policy keeps no before-images; use Policy::Shadow", policy.name());
        return Err(OpenError::Option { name: "buffer_pool", value: pool.bytes, why });
    }
    if kind.is_private() || options.wanted().tracking != Tracking::Scan {
        return Ok(());
    }
    let why =
        format!("the {} policy keeps no old values to compare with; use Tracking::Fault", policy.name());
    Err(OpenError::Option { name: "tracking", value: Tracking::Scan as u64, why })
}

/// Makes a store. The catalog comes last: without it the directory holds no store, and the files of an
/// attempt that failed are made anew.
fn create(dir: &Path, options: &Options, made_dir: bool) -> Result<(), OpenError> {
    let media = &*options.settings.media;
    directory::only_ours(media, dir)?;
    let (mut uncatalogued, settings) = (true, &options.settings);
    let said = if planted("making-not-said") { Ok(()) } else { directory::begin_making(media, dir) };
    let identity = || media.random_id().map_err(OpenError::io("draw a random identity for", dir));
    let done = said.and_then(|()| identity()).and_then(|store| {
        let new = New { dir, settings, store, uncatalogued: &mut uncatalogued };
        table::kind(options.policy.unwrap_or(Policy::Redo)).create(new)
    });
    if done.is_err() && uncatalogued {
        let _ = media.remove(&dir.join(LOG));
        let _ = media.remove(&dir.join(STAGE));
        let _ = media.remove(&dir.join(UNDO));
        let _ = media.remove(&dir.join(SHADOW));
        let _ = media.remove(&dir.join(GENERATIONS));
        directory::end_making(media, dir);
        if made_dir {
            let _ = media.remove(&dir.join(LOCK));
            let _ = media.remove_directory(dir);
        }
    }
    done
}

/// Reads the catalog, opens the segments, and leaves the rest to the policy.
fn recover(dir: &Path, options: &Options, lock: Lock) -> Result<Arc<Shared>, OpenError> {
    let settings = &options.settings;
    let (media, write) = (&*settings.media, !settings.read_only);
    if write {
        directory::end_making(media, dir);
        attempt::end(media, dir)?;
    }
    if unless("catalog-name-not-forced", write) {
        // A replacement that failed at its end shows a catalog that a power cut may take back.
        media.sync_directory(dir).map_err(OpenError::io("force directory", dir))?;
    }
    let (catalog, mut damage) = directory::find_catalog(media, dir)?;
    if !settings.salvage
        && let Some(older) = damage
    {
        return Err(older);
    }
    let kind = table::kind_of(dir, &catalog)?;
    if let Some(wanted) = options.policy.filter(|wanted| *wanted != kind.policy()) {
        return Err(OpenError::OtherPolicy {
            path: dir.to_owned(),
            wanted: wanted.name(),
            found: kind.policy().name(),
        });
    }
    tracks(kind, options)?;
    let descriptors = Descriptors::of(media);
    let found = match &damage {
        None => Generations::open(media, dir, &catalog, write),
        Some(_) => Ok(None),
    };
    let mut generations = of_salvage(settings, &mut damage, found)?.flatten();
    let opener = |generations| {
        let (media, descriptors) = (&settings.media, &descriptors);
        Opener { media, descriptors, dir, write, claim: true, generations }
    };
    let segments = directory::open_segments(opener(generations.as_ref()), &catalog, kind.has_sums(&catalog));
    let segments = match of_salvage(settings, &mut damage, segments)? {
        Some(segments) => segments,
        None => directory::open_segments(opener(None), &catalog, kind.has_sums(&catalog))?,
    };
    if damage.is_some() {
        generations = None;
    }
    if unless("holes-not-filled", write && !kind.is_private()) {
        // A copy may be sparse, and a hole may have been made since.
        segments.iter().try_for_each(|segment| segment.fill_holes())?;
    }
    let made = settings.pool.map(|how| Pool::new(&how, media, dir)).transpose();
    let pool = made.map_err(OpenError::io("make a buffer pool in", dir))?;
    let (wanted, locks, dir) = (options.wanted(), vec![lock], dir.to_owned());
    let found = storage::Found {
        dir,
        catalog,
        segments,
        descriptors,
        locks,
        log_locks: Vec::new(),
        keys: wanted.keys(),
        images: wanted.tracking == Tracking::Scan,
        pool,
        generations,
        damage,
    };
    let opened = kind.open(Opening { settings, found, tracked: wanted.any() })?;
    if write {
        opened.policy.arrange(settings, true)?;
    }
    Ok(Shared::new(options, kind.policy(), opened))
}

/// What was found, or nothing if salvage does without it.
fn of_salvage<T>(
    settings: &Settings,
    damage: &mut Option<OpenError>,
    found: Result<T, OpenError>,
) -> Result<Option<T>, OpenError> {
    match found {
        Err(error) if settings.salvage => {
            damage.get_or_insert(error);
            Ok(None)
        }
        found => found.map(Some),
    }
}
