//! What bytes were at any moment, who changed them from what to what, and damaged pages made again from that.

#[path = "support/backup.rs"]
mod support;

use caliburn::{
    ArchiveOptions, BackupError, Changed, Class, DumpOptions, Filter, History, Mode, Options, Policy,
    RestoreOptions, Store, Until,
};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use support::{LEN, Model, assert_is, beside, options, transact, wait_until};

/// Bytes at an offset of the segment's file are changed behind the store's back.
fn damage(store: &Path, segment: &str, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(store.join(format!("{segment}.segment")))
        .unwrap();
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 65536 + offset).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    file.write_all_at(&bytes, 65536 + offset).unwrap();
}

fn dump(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.dump(&DumpOptions::new(), &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_are_told_as_of_any_commit_and_each_change_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("a"));
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
    // Each in a record of its own.
    let one = |number: u64| {
        transact(&store, &region, number);
        store.flush().unwrap();
    };
    (1..30).for_each(one);
    let bytes = dump(&store);
    (30..120).for_each(one);
    store.truncate().unwrap();
    archiver.flush().unwrap();
    // The rest is in the log of the store, which is in use.
    (120..200).for_each(one);
    let mut records: Vec<(u64, u64)> = History::archived(&archive, &Filter::default())
        .unwrap()
        .into_iter()
        .chain(History::open(&path).unwrap().live(&Filter::default(), false).unwrap())
        .filter_map(|event| {
            let first = event.changes.iter().find(|change| change.offset == 0)?;
            Some((event.lsn + event.log_bytes, u64::from_le_bytes(first.bytes[..8].try_into().unwrap())))
        })
        .collect();
    records.sort_unstable();
    records.dedup();
    let mut model = Model::new();
    let mut how = RestoreOptions::new();
    how.archive(&archive).left(&path);
    let range = 4096..4096 + 64 * 1024u64;
    for (lsn, number) in records.iter().filter(|(_, number)| *number >= 29).step_by(7) {
        let (mut last, mut told) = (0, Vec::<Changed>::new());
        let past = Options::new()
            .past(&mut &bytes[..], how.until(Until::Lsn(*lsn)), "data", range.clone(), &mut |changed| {
                assert!(last <= changed.lsn);
                last = changed.lsn;
                told.push(changed.clone());
            })
            .unwrap();
        assert_eq!((past.lsn, past.offset), (*lsn, 4096));
        let expected: Vec<u8> =
            model.after(*number)[512..][..8192].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(past.bytes, expected, "as of transaction {number}");
        // From the end of the dump on each is what was there, and what came.
        let mut bytes =
            model.after(29)[512..][..8192].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        for changed in &told {
            let there = &mut bytes[(changed.offset - 4096) as usize..][..changed.old.len()];
            assert_eq!(there, changed.old);
            there.copy_from_slice(&changed.new);
        }
        assert_eq!(bytes, expected);
    }
    // A part of the archive is missing, and nothing else has what was in it.
    let parts = caliburn::archive_parts(&archive).unwrap();
    let missing = archive.join(&parts[0].name);
    let kept = std::fs::read(&missing).unwrap();
    std::fs::remove_file(&missing).unwrap();
    std::fs::write(archive.join("09999999999999999990-09999999999999999999.log"), b"").unwrap();
    let hole = Options::new()
        .past(&mut &bytes[..], RestoreOptions::new().archive(&archive), "data", 0..8, &mut |_| {})
        .unwrap_err();
    assert!(matches!(hole, BackupError::Hole { .. }), "{hole}");
    std::fs::remove_file(archive.join("09999999999999999990-09999999999999999999.log")).unwrap();
    std::fs::write(&missing, kept).unwrap();
    let never = |name: &str, how: &RestoreOptions| {
        Options::new().past(&mut &bytes[..], how, name, 0..8, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(never("nobody", &how).contains("nobody"));
    assert!(never("data", RestoreOptions::new().until(Until::Lsn(1))).contains("later than what is wanted"));
    let other = options().open(dir.path().join("other")).unwrap();
    let error = never("data", RestoreOptions::new().left(other.path()));
    assert!(error.contains("another store"), "{error}");
}

#[test]
fn damaged_pages_are_mended_while_the_store_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("a"));
    let mut model = Model::new();
    beside(&path, |store, done| {
        let mut archiver = Options::new().archiver(&path, &ArchiveOptions::directory(&archive)).unwrap();
        // Pages that nobody changes after they were damaged: else the damage is in their checksums.
        let still = store.create_segment("still", LEN).unwrap().map_all().unwrap();
        let fill = |page: u64, value: u64| {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.store(&still, (page * 4096) as usize, &value).unwrap();
            tx.store(&still, (page * 4096) as usize + 2000, &!value).unwrap();
            tx.commit(Class::Process).unwrap();
        };
        (0..200).for_each(|page| fill(page, page));
        wait_until(done, 200);
        let bytes = support::dumped(|out| store.dump(&DumpOptions::new(), out)).1;
        (0..100).for_each(|page| fill(page, page + 1000));
        let mut mended = 0;
        for round in 0..15u64 {
            wait_until(done, done.load(SeqCst) + 20);
            archiver.flush().unwrap();
            let page = round * 13 % 200;
            store.truncate().unwrap();
            damage(&path, "still", page * 4096 + 1996);
            let all = store.mend(&mut &bytes[..], RestoreOptions::new().archive(&archive)).unwrap();
            for page in &all {
                assert_eq!(page.why_not, None, "{page:?}");
                mended += 1;
            }
            let value = if page < 100 { page + 1000 } else { page };
            let there = [0, 2000].map(|at| still.load::<u64>((page * 4096) as usize + at));
            assert_eq!(there, [value, !value], "page {page}");
        }
        assert_eq!(mended, 15, "not each was found");
        assert_eq!(store.scrub().unwrap(), []);
    });
    let mut bytes = vec![0; LEN as usize];
    let store = options().open(&path).unwrap();
    store.segment("data").unwrap().map_all().unwrap().read(0, &mut bytes);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_is(&mut model, &words, "after all");
}

#[test]
fn what_is_not_known_is_not_mended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let put = |offset: usize, value: u64| {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.store(&region, offset, &value).unwrap();
        tx.commit(Class::Power).unwrap();
    };
    put(0, 1);
    put(8192, 1);
    store.truncate().unwrap();
    let bytes = dump(&store);
    put(8192, 2);
    store.truncate().unwrap();
    let mend = |how: &RestoreOptions| store.mend(&mut &bytes[..], how).unwrap();
    assert_eq!(mend(&RestoreOptions::new()), []);
    damage(&path, "data", 0);
    damage(&path, "data", 8192);
    damage(&path, "data", 65536);
    let places = [0, 8192, 65536].map(|offset| ("data".to_owned(), offset));
    assert_eq!(store.scrub().unwrap(), places);
    // All of the log is still there, so that no archive is needed.
    let mended = mend(&RestoreOptions::new());
    assert_eq!(mended.iter().filter(|page| page.why_not.is_none()).count(), 3, "{mended:?}");
    assert_eq!([0, 8192, 65536].map(|at| region.load::<u64>(at)), [1, 2, 0]);
    assert_eq!(store.scrub().unwrap(), []);

    // The log is overwritten, and nothing has what was in it.
    for number in 0..3000 {
        let mut tx = store.begin(Mode::Restore).unwrap();
        tx.write(&region, 16384, &[number as u8; 1000]).unwrap();
        tx.commit(Class::Power).unwrap();
    }
    put(8192, 3);
    store.truncate().unwrap();
    damage(&path, "data", 0);
    let error = store.mend(&mut &bytes[..], &RestoreOptions::new()).unwrap_err();
    assert!(matches!(error, BackupError::Hole { .. }), "{error}");
    assert_eq!(store.scrub().unwrap(), places[..1]);
    // A newer dump cannot be made of what is damaged.
    let error = store.dump(&DumpOptions::new(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
    let undo = options().policy(Policy::Undo).open(dir.path().join("undo")).unwrap();
    assert_eq!(undo.scrub().unwrap(), []);
    let error = undo.mend(&mut &bytes[..], &RestoreOptions::new()).unwrap_err();
    assert!(error.to_string().contains("no checksums"), "{error}");
}

#[test]
fn a_damaged_checksum_does_not_make_its_page_another() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = options().open(&path).unwrap();
    let region = store.create_segment("data", LEN).unwrap().map_all().unwrap();
    let mut tx = store.begin(Mode::Restore).unwrap();
    tx.store(&region, 0, &1u64).unwrap();
    tx.commit(Class::Power).unwrap();
    store.truncate().unwrap();
    let bytes = dump(&store);
    let sums = std::fs::OpenOptions::new().write(true).open(path.join("data.sums")).unwrap();
    sums.write_all_at(&[1, 2, 3, 4], 4096).unwrap();
    let mended = store.mend(&mut &bytes[..], &RestoreOptions::new()).unwrap();
    assert!(mended[0].why_not.as_ref().unwrap().contains("does not match its checksum"), "{mended:?}");
    assert_eq!(region.load::<u64>(0), 1);
}
