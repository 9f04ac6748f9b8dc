//! Room on the disk: all the builds of `cargo xtask test` together take more than some machines have.

use std::fs;

/// What a step may need, in GiB.
const WANTED: u64 = 20;

/// Free room on the disk of the working folder, in GiB; none if it can't be found out.
fn free() -> Option<u64> {
    let output = crate::command("df --output=avail --block-size=1 .").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().nth(1)?.trim().parse::<u64>().ok()? >> 30)
}

/// For the line that names a step, if there is little.
pub fn said() -> String {
    match free() {
        Some(free) if free < WANTED => format!(" ({free} GiB free)"),
        _ => String::new(),
    }
}

/// Removes builds that no later step uses, if there is little room; they would be made again.
pub fn make(folders: &[&str]) {
    if free().is_some_and(|free| free < WANTED) {
        for folder in folders {
            println!("--- to make room: rm -r {folder}");
            let _ = fs::remove_dir_all(folder);
        }
    }
}
