//! RVM's tools, by their own names, as scripts use them.

use caliburn::{Class, Mode, Options, Tuning};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs a tool in a directory, with lines on its standard input.
fn tool(dir: &Path, name: &str, arguments: &[&str], lines: &str) -> Output {
    let tools = [("rvmutl", env!("CARGO_BIN_EXE_rvmutl")), ("rdsinit", env!("CARGO_BIN_EXE_rdsinit"))];
    let program = tools.iter().find(|(tool, _)| *tool == name).expect("it is one of RVM's tools").1;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const NUMBERS: [&str; 6] = ["0x101000", "0x20000000", "0xc0000", "0x40000", "80", "64"];

#[test]
fn a_log_is_made_looked_at_and_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let made = tool(dir.path(), "rvmutl", &[], "i LOG 64K\nstatus\nq\n");
    assert!(
        made.status.success() && said(&made).contains("length:                65536 bytes"),
        "{}",
        said(&made)
    );
    assert!(
        said(&made).starts_with("* * Status of log:") && said(&made).contains("empty:                 true")
    );
    let again =
        tool(dir.path(), "rvmutl", &["LOG"], "show all\nshow head\nrecover\ninit_log LOG 2P\nstatus\nquit\n");
    assert!(
        again.status.success() && said(&again).contains("length:                8192 bytes"),
        "{}",
        said(&again)
    );
    assert!(said(&again).contains("-- no more records"));
    let wrong = tool(dir.path(), "rvmutl", &[], "status\nfly\ni LOG 5X\no nothing\ni no/where/LOG 64K\n");
    assert_eq!(wrong.status.code(), Some(1));
    for what in [
        "no log is open",
        "\"fly\": no such command",
        "a unit is K, M, S, P or B",
        "nothing.caliburn is not a store",
        "RVM_EIO",
    ] {
        assert!(said(&wrong).contains(what), "{what}: {}", said(&wrong));
    }
    std::fs::write(dir.path().join("text"), "not a log").unwrap();
    let foreign = tool(dir.path(), "rvmutl", &[], "i text 64K\n");
    assert!(said(&foreign).contains("not a log of this library") && dir.path().join("text").exists());
}

/// The child commits in class `Process` and ends without closing the store.
#[test]
fn child() {
    let Some(store) = std::env::var_os("RVM_STORE") else { return };
    // Only a full stage moves on to the log.
    let tuning = Tuning { flush_interval: Duration::MAX, ..Tuning::default() };
    let store = Options::new().tuning(tuning).open(store).unwrap();
    let region = store.create_segment("data", 1 << 16).unwrap().map_all().unwrap();
    let mut transaction = store.begin(Mode::Restore).unwrap();
    transaction.write(&region, 0, &7u64.to_le_bytes()).unwrap();
    transaction.commit(Class::Process).unwrap();
    std::process::exit(0);
}

#[test]
fn commits_that_wait_in_the_stage_are_told() {
    let dir = tempfile::tempdir().unwrap();
    assert!(tool(dir.path(), "rvmutl", &[], "i LOG 1M\n").status.success());
    let mut killed = Command::new(std::env::current_exe().unwrap());
    killed.args(["--exact", "child"]).env("RVM_STORE", dir.path().join("LOG.caliburn"));
    assert!(killed.output().unwrap().status.success());
    let status = said(&tool(dir.path(), "rvmutl", &["LOG"], "status\n"));
    assert!(status.contains("in the stage:          1 no-flush commit"), "{status}");
    assert!(status.contains("empty:                 false"), "{status}");
    let after = said(&tool(dir.path(), "rvmutl", &["LOG"], "recover\nstatus\n"));
    assert!(!after.contains("in the stage") && after.contains("empty:                 true"), "{after}");
}

#[test]
fn a_heap_is_made_and_its_records_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    assert!(tool(dir.path(), "rvmutl", &[], "i LOG 1M\n").status.success());
    let made = tool(dir.path(), "rdsinit", &[&["-f", "LOG", "DATA"][..], &NUMBERS].concat(), "");
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(
        said(&made),
        "rvm_initialize succeeded.\nrds_zap_heap completed successfully.\nrvm_terminate succeeded.\n"
    );
    let data = std::fs::read(dir.path().join("DATA")).unwrap();
    assert_eq!(data.len(), 0x101000);
    assert_eq!(&data[..48], b"\x01\0\0\0RVM Segment Loader Release 0.1  15 Nov. 1990");
    assert!(data[4096..].starts_with(b"Dynamic Allocator Using Rvm Release 0.1 1 Dec 1990\0"));
    // What is not said is asked for.
    let asked = tool(dir.path(), "rdsinit", &["LOG", "OTHER", "0x101000"], "\n\n0x8000\n\n\n");
    assert!(
        asked.status.success() && said(&asked).contains("Enter the length of the heap [0xc0000]: "),
        "{}",
        said(&asked)
    );
    let wrong = tool(dir.path(), "rdsinit", &["-f", "LOG", "DATA", "0x101000"], "");
    assert_eq!(wrong.status.code(), Some(2));
    let small = tool(
        dir.path(),
        "rdsinit",
        &["-f", "LOG", "DATA", "0x101000", "0x20000000", "0xc0000", "0x40000", "80", "32"],
        "",
    );
    assert!(small.status.code() == Some(1) && said(&small).contains("error -6"), "{}", said(&small));
    // A log whose segment is gone can be looked at, and made anew.
    std::fs::remove_file(dir.path().join("OTHER")).unwrap();
    let gone = tool(dir.path(), "rvmutl", &["LOG"], "status\ni LOG 1M\n");
    assert!(gone.status.success() && said(&gone).contains("/OTHER, "), "{}", said(&gone));
    let no_log = tool(dir.path(), "rdsinit", &[&["-f", "NONE", "DATA"][..], &NUMBERS].concat(), "");
    assert!(no_log.status.code() == Some(1) && said(&no_log).contains("RVM_EIO"), "{}", said(&no_log));
}
