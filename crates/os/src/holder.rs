//! The text in a lock: who holds it, for people. Never more than a hint, since the lock is the kernel's.
//!
//! ```text
//!   process 12 (bank) in pid:[4026531836] on web-3
//! ```
//!
//! The number of a process means something in its PID namespace only: a container has a process 1 of its own.

use crate::descriptors;
use crate::simulated::unless;
use rustix::process::{Pid, test_kill_process};

/// How it begins.
pub(crate) const HOLDER: &str = "process ";

/// Of this process.
pub(crate) fn text() -> String {
    let name = descriptors::read_text("/proc/self/comm").unwrap_or_default();
    let place = match namespace() {
        Some(namespace) => format!(" in {namespace} on {}", host()),
        None => format!(" on {}", host()),
    };
    format!("{HOLDER}{} ({}){place}\n", std::process::id(), name.trim())
}

/// Where this process's number means something, if the system says.
fn namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What is known of the holder whose text this is. The text may be anybody's.
pub(crate) fn known(text: &str) -> String {
    // A terminal would obey control characters.
    let text = text.trim().replace(char::is_control, "?");
    if text.is_empty() {
        return "another process".into();
    }
    told(&text, namespace().as_deref(), &host(), |number| {
        Pid::from_raw(number).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    })
}

fn told(text: &str, own: Option<&str>, own_host: &str, has_ended: impl Fn(i32) -> bool) -> String {
    // A name may hold anything but for what begins the place behind it.
    let place = text.rsplit_once(") in ").and_then(|(who, place)| Some((who, place.split_once(" on ")?)));
    let Some((who, (namespace, host))) = place else { return text.to_owned() };
    let who = format!("{who})");
    if host != own_host {
        return format!("{who} of host or container {host:?}: its number means nothing here");
    }
    if unless("holders-of-any-container", own != Some(namespace)) {
        return format!(
            "{who} of another container of host {host:?} ({namespace}): its number means nothing here"
        );
    }
    let number = who.strip_prefix(HOLDER).and_then(|rest| rest.split_once(' ')?.0.parse().ok());
    match number.is_some_and(has_ended) {
        true => format!("a child of {who}, which has ended"),
        false => who,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_something_in_its_namespace_only() {
        let own = |text: &str| told(text, Some("pid:[1]"), "here", |number| number == 9);
        let text = "process 1 (a) in b) in pid:[1] on here";
        assert_eq!(own(text), "process 1 (a) in b)");
        assert_eq!(own("process 1 (bank)"), "process 1 (bank)", "an older one");
        let other = own("process 1 (bank) in pid:[2] on here");
        assert!(
            other.starts_with("process 1 (bank) of another container of host \"here\" (pid:[2])"),
            "{other}"
        );
        let other = own("process 1 (bank) in pid:[1] on there");
        assert!(other.starts_with("process 1 (bank) of host or container \"there\""), "{other}");
        let ended = own("process 9 (bank) in pid:[1] on here");
        assert_eq!(ended, "a child of process 9 (bank), which has ended");
        assert_eq!(own("process of somebody) in x"), "process of somebody) in x");
    }

    #[test]
    fn the_own_text_is_known() {
        let known = known(&text());
        assert!(known.starts_with(&format!("process {} (", std::process::id())), "{known}");
        assert!(!known.contains("means nothing"), "{known}");
        assert_eq!(super::known(" \n"), "another process");
        assert_eq!(super::known("a\u{1b}b"), "a?b");
    }
}
