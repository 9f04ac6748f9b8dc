//! A store without background threads: whoever needs room makes it.

mod support;

use caliburn::{Class, Guard, Mode, Tuning};
use support::clean;

#[test]
fn a_program_without_threads_never_waits_for_anybody() {
    for (declared_only, class) in [(false, Class::Process), (true, Class::Process), (true, Class::Power)] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = support::options();
        let tuning = Tuning { memory_budget: Some(4 << 20), ..Tuning::default() };
        options.background(false).declared_only(declared_only).guard(Guard::Off).tuning(tuning);
        let path = dir.path().join("s");
        let store = options.log_bytes(128 << 10).open(&path).unwrap();
        let region = store.create_segment("data", 16 << 20).unwrap().map_all().unwrap();
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        // A hundred times the log, eight times the stage, three times the memory.
        for i in 0..3000usize {
            let mut tx = store.begin(Mode::Restore).unwrap();
            tx.write(&region, i * 5000 % (15 << 20), &[i as u8; 4000]).unwrap();
            tx.commit(class).unwrap();
        }
        assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), threads);
        assert!(store.query().private_pages * store.query().page_bytes <= 4 << 20);
        let statistics = store.statistics();
        assert!(statistics.epochs + statistics.truncations > 0);
        assert!(!declared_only || statistics.truncations == 0);
        drop(region);
        store.close().unwrap();
        clean(&path);
        let region = options.open(&path).unwrap().segment("data").unwrap().map_all().unwrap();
        for i in 2000..3000usize {
            assert_eq!(region.load::<[u8; 4000]>(i * 5000 % (15 << 20)), [i as u8; 4000]);
        }
    }
}
