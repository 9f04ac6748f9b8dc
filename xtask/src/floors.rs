//! Which way code depends: in each tree, every folder or file stands on a floor, and uses only what stands below.

use std::fs;
use std::path::{Path, PathBuf};

/// A tree, its floors from the lowest up, and pairs that must not know each other though one stands above the
/// other.
struct Tree {
    root: &'static str,
    floors: &'static [&'static str],
    apart: &'static [(&'static str, &'static str)],
}

const TREES: [Tree; 14] = [
    Tree {
        root: "crates/engine/src",
        floors: &[
            "storage",
            "write_set",
            "tracking",
            "policy",
            "policy/redo",
            "policy/undo",
            "policy/shadow",
            "policy/table",
            "inspect",
            "api",
            "lib",
        ],
        apart: &[
            ("policy/undo", "policy/redo"),
            ("policy/shadow", "policy/redo"),
            ("policy/shadow", "policy/undo"),
            ("policy", "tracking"),
        ],
    },
    Tree {
        root: "crates/log/src",
        floors: &[
            "format",
            "media_error",
            "order",
            "dump",
            "pagemap",
            "record",
            "archive",
            "merge",
            "status_pages",
            "ring",
            "search",
            "window",
            "mend",
            "scan",
            "log",
            "sealed",
            "staged_tail",
            "prepared",
            "uncommitted",
            "image_status",
            "images",
            "lib",
        ],
        apart: &[],
    },
    Tree {
        root: "crates/heap/src",
        floors: &[
            "class",
            "change",
            "meta",
            "span",
            "intentions",
            "heap",
            "rows",
            "supply",
            "clear",
            "statistics",
            "transaction",
            "prepared",
            "allocations",
            "lib",
        ],
        apart: &[],
    },
    Tree {
        root: "crates/typed/src",
        floors: &[
            "error",
            "hash",
            "link",
            "turns",
            "images",
            "value",
            "entry",
            "pbox",
            "shared",
            "vec",
            "string",
            "deque",
            "log",
            "slot_map",
            "hash_map",
            "btree_map",
            "set",
            "objects",
            "snapshot",
            "map",
            "show",
            "reach",
            "kept",
            "pieces",
            "plan",
            "rebuild",
            "migrate",
            "portable",
            "lib",
        ],
        apart: &[("btree_map", "hash_map")],
    },
    Tree {
        root: "crates/os/src",
        // The crate's root has what all others stand on.
        floors: &[
            "lib",
            "simulated",
            "sync",
            "descriptors",
            "lineage",
            "barrier",
            "event",
            "ordinal",
            "clock",
            "span",
            "memory",
            "names",
            "nbd_device",
            "holder",
            "host",
            "mappings",
            "map",
            "private",
            "written",
            "persist",
            "summed",
            "faults",
            "rescue",
            "guard",
            "medium",
            "observed",
            "duplex",
            "overflow",
            "overlay",
            "inode",
            "files",
            "witness",
            "mapped",
        ],
        apart: &[],
    },
    Tree {
        root: "sim/src",
        floors: &[
            "random",
            "sight",
            "content",
            "script",
            "model",
            "undecided",
            "names",
            "disk",
            "media",
            "flavour",
            "life",
            "making",
            "explore",
            "damage",
            "copies",
            "yesterday",
            "heap",
            "adoption",
            "creation",
            "restoring",
            "threads",
            "images",
            "dumps",
            "locks",
            "replicas",
            "pm",
            "lib",
            "campaign",
            "command",
            "main",
            "bin",
        ],
        apart: &[],
    },
    Tree {
        root: "bindings/camelot/src",
        floors: &[
            "bytes", "tid", "status", "program", "stack", "call", "objects", "stubs", "server", "lib", "bin",
        ],
        apart: &[],
    },
    Tree {
        root: "bindings/c/src",
        floors: &[
            "error",
            "text",
            "handle",
            "options",
            "store",
            "segment",
            "region",
            "transaction",
            "prepared",
            "query",
            "heap",
            "lib",
        ],
        apart: &[],
    },
    Tree { root: "layers/history/src", floors: &["lib"], apart: &[] },
    Tree {
        root: "layers/lock/src",
        floors: &[
            "mode", "error", "node", "queue", "deadlock", "limit", "owner", "follow", "table", "ranges",
            "detector", "pages", "commute", "escrow", "lib",
        ],
        apart: &[],
    },
    Tree {
        root: "layers/nest/src",
        floors: &["error", "family", "follow", "hooks", "clock", "transaction", "parallel", "top", "lib"],
        apart: &[],
    },
    Tree {
        root: "layers/pm/src",
        floors: &[
            "format", "error", "memory", "geometry", "kind", "base", "space", "claim", "about", "region",
            "attached", "segment", "blocks", "attach", "export", "nbd", "fuse", "lib",
        ],
        apart: &[],
    },
    Tree {
        root: "layers/serial/src",
        floors: &["error", "cell", "gate", "cells", "transaction", "top", "lib"],
        apart: &[],
    },
    Tree {
        root: "layers/dist/src",
        floors: &[
            "commit/word",
            "commit/slots",
            "commit/coordinator",
            "commit/participant",
            "commit",
            "proto",
            "link",
            "credentials",
            "rights",
            "process_id",
            "timetable",
            "log_plan",
            "id",
            "chase",
            "family",
            "scope",
            "letter",
            "reliance",
            "host",
            "hearing",
            "relying",
            "keep/known",
            "keep/claim",
            "keep/memory",
            "keep/etcd",
            "keep/meeting",
            "keep/keeper",
            "keep/members",
            "keep/log",
            "cluster",
            "keep/names",
            "keep",
            "wire",
            "travelling",
            "client",
            "directory",
            "node/notices",
            "node/door",
            "node/work",
            "node/heaps",
            "node/ledger",
            "node/time",
            "node/outside",
            "node/state",
            "node/core",
            "node/recovery",
            "node/ending",
            "node/deadlocks",
            "node/pool",
            "node/call",
            "node/error",
            "node/dumps",
            "node/replicated",
            "node/guard",
            "node/running",
            "node/judgement",
            "node/serve",
            "node/opening",
            "node/open",
            "node",
            "dumping",
            "environment",
            "exposure",
            "data_server",
            "daemon/keeping",
            "daemon/table",
            "daemon/events",
            "daemon/process",
            "daemon/service",
            "daemon",
            "bank",
            "lib",
        ],
        apart: &[("commit/coordinator", "commit/participant")],
    },
];

/// The C library for RVM's programs, likewise: a file uses the functions of those before it.
const RVM: &str = "bindings/rvm/src";
const RVM_FLOORS: [&str; 15] = [
    "names",
    "offsets",
    "records",
    "threads",
    "state",
    "statistics",
    "transaction",
    "log",
    "map",
    "life",
    "segment",
    "rds_blocks",
    "rds",
    "rds_stats",
    "tool",
];

/// Names each use of a higher floor, and each file that stands on none.
pub fn check(files: &[PathBuf], problems: &mut Vec<String>) -> Result<(), String> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(RVM).map_err(|e| format!("{RVM}: {e}"))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|e| e == "c") {
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            sources.push((stem, text));
        }
    }
    problems.extend(c_problems(&sources).into_iter().map(|what| format!("{RVM}/{what}")));
    for path in files {
        for tree in &TREES {
            let Ok(inside) = path.strip_prefix(tree.root) else { continue };
            let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let there = |module: &[&str]| tree.is_module(module);
            for (line, what) in tree.problems(inside, &text, &there) {
                problems.push(format!("{}:{line}: {what}", path.display()));
            }
        }
    }
    Ok(())
}

impl Tree {
    /// The floor of a module, by the longest path that is on the list.
    fn floor(&self, module: &str) -> Option<usize> {
        let found = self.floors.iter().enumerate().filter(|(_, floor)| is_in(module, floor));
        found.max_by_key(|(_, floor)| floor.len()).map(|(number, _)| number)
    }

    fn is_module(&self, module: &[&str]) -> bool {
        let path = Path::new(self.root).join(module.join("/"));
        path.is_dir() || path.with_extension("rs").is_file()
    }

    fn problems(&self, inside: &Path, text: &str, there: &dyn Fn(&[&str]) -> bool) -> Vec<(usize, String)> {
        let module = inside.with_extension("").to_string_lossy().into_owned();
        let module = module.strip_suffix("/mod").unwrap_or(&module).to_owned();
        let Some(own) = self.floor(&module) else {
            return vec![(1, "the file stands on no floor: see xtask/src/floors.rs".to_owned())];
        };
        let mut found = Vec::new();
        for (line, path) in uses(&module, text) {
            // As much of it as is a module; what else is used of the crate's root stands highest.
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let known = (1..=parts.len()).rev().find(|n| there(&parts[..*n]));
            let used = known.map_or("lib".to_owned(), |n| parts[..n].join("/"));
            let Some(floor) = self.floor(&used) else { continue };
            let (from, to) = (self.floors[own], self.floors[floor]);
            let apart =
                |(a, b): &(&str, &str)| is_in(from, a) && is_in(to, b) || is_in(from, b) && is_in(to, a);
            let apart = self.apart.iter().any(apart);
            if floor > own || apart {
                found.push((line, format!("{from} must not use {used}: it stands higher, or apart")));
            }
        }
        found
    }
}

/// The functions that a C file defines for others: `name(...)` at the margin, not static, with a body.
fn defined(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let at_margin = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic());
    let bodies = (1..lines.len()).filter(|i| lines[*i] == "{");
    let heads = bodies.filter_map(|i| lines[..i].iter().rev().find(|line| at_margin(line)));
    let shared = heads.filter(|head| !head.starts_with("static") && !head.starts_with("struct "));
    shared.filter_map(|head| head.split('(').next()?.rsplit([' ', '*']).next()).collect()
}

fn c_problems(sources: &[(String, String)]) -> Vec<String> {
    let mut problems = Vec::new();
    let floor = |file: &str| RVM_FLOORS.iter().position(|name| *name == file);
    for (file, text) in sources {
        let Some(own) = floor(file) else {
            problems.push(format!("{file}.c:1: the file stands on no floor: see xtask/src/floors.rs"));
            continue;
        };
        let code: String = text.split("/*").map(|part| part.rsplit("*/").next().unwrap_or(part)).collect();
        // Nor what is said in messages.
        let code: String = code.lines().flat_map(|line| line.split('"').step_by(2).chain(["\n"])).collect();
        let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for (other, theirs) in sources.iter().filter(|(other, _)| floor(other) > Some(own)) {
            if let Some(name) = defined(theirs).into_iter().find(|name| words.contains(name)) {
                problems.push(format!("{file}.c: {name} is defined in {other}.c, which stands higher"));
            }
        }
    }
    problems
}

/// Whether a module is a folder, or in it.
fn is_in(module: &str, folder: &str) -> bool {
    module == folder || module.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// What a file uses of its own crate, with lines: paths behind `crate::` and `super::`, up to its tests.
fn uses(module: &str, text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line == "mod tests {" {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        // Of a module of the folder's own.
        let own = code.strip_prefix("use ").and_then(|path| path.split_once("::"));
        if let Some((name, _)) = own.filter(|(name, _)| !matches!(*name, "crate" | "super")) {
            found.push((number + 1, module.split('/').chain([name]).map(str::to_owned).collect()));
        }
        for (word, up) in [("crate::", false), ("super::", true)] {
            for (at, _) in code.match_indices(word) {
                let whole = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                if code[..at].ends_with(whole) {
                    continue;
                }
                let rest = &code[at + word.len()..];
                let path: String = rest.chars().take_while(|c| whole(*c)).collect();
                let mut parts: Vec<String> = Vec::new();
                if up {
                    parts.extend(module.split('/').map(str::to_owned));
                    parts.pop();
                }
                parts.extend(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
                let braced = rest[path.len()..].strip_prefix('{').map(|names| names.split('}').next());
                match braced.flatten() {
                    Some(names) => {
                        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                            let mut whole = parts.clone();
                            whole.extend(name.split("::").filter(|n| *n != "self").map(str::to_owned));
                            found.push((number + 1, whole));
                        }
                    }
                    None => found.push((number + 1, parts)),
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(file: &str, text: &str) -> usize {
        let there = |module: &[&str]| {
            matches!(module, [_] | ["policy", _] | ["policy", _, "stage"]) && module[0] != "Store"
        };
        TREES[0].problems(Path::new(file), text, &there).len()
    }

    #[test]
    fn functions_in_c_are_called_downwards() {
        let sources = |map: &str| {
            let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
            let log = "static int own(void)\n{\n}\n\nchar *log_open(const char *name,\n    int mode)\n{\n    map_it();\n}\n";
            c_problems(&[file("log", log), file("map", map)]).len()
        };
        assert_eq!(
            defined("static int own(void)\n{\n}\nchar *log_open(int a,\n  int b)\n{\n}\n"),
            ["log_open"]
        );
        assert_eq!(sources("void other(void)\n{\n    log_open();\n}\n"), 0);
        assert_eq!(sources("void map_it(void)\n{\n    log_open();\n}\n"), 1);
        assert_eq!(sources("static void map_it(void)\n{\n}\n"), 0);
    }

    #[test]
    fn arrows_point_down() {
        assert_eq!(problems("storage/segment.rs", "use crate::api::shared::Shared;"), 1);
        assert_eq!(problems("api/store.rs", "use crate::storage::segment::SegmentState;"), 0);
        assert_eq!(problems("policy/undo/runs.rs", "use crate::policy::redo::stage::Stage;"), 1);
        assert_eq!(
            problems("policy/redo/commit.rs", "use super::stage::Stage;\nuse crate::policy::kind::New;"),
            0
        );
        assert_eq!(problems("policy/mod.rs", "use redo::Redo;\nuse crate::policy::redo::Redo;"), 2);
        assert_eq!(problems("policy/kind.rs", "use super::table;"), 1);
        assert_eq!(problems("policy/table.rs", "use super::{redo, undo};"), 0);
        assert_eq!(problems("tracking/guard.rs", "use crate::policy::query::Query;"), 1);
        assert_eq!(problems("policy/redo/mod.rs", "use crate::tracking::Tracked;"), 1);
        assert_eq!(problems("storage/error.rs", "fn f() -> crate::Store {}"), 1, "of the crate's root");
        assert_eq!(problems("storage/error.rs", "/// See [`crate::Store`]."), 0);
        assert_eq!(problems("elsewhere/x.rs", ""), 1);
    }
}
