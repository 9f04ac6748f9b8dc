//! `cargo xtask c`: the C libraries are installed into a folder of the build's, and the tests that are written in C and
//! C++ are compiled against that, as anybody's programs would be, and run: plainly, under valgrind, with the
//! compiler's sanitizers, linked to the static library.

use crate::install::{self, SYSTEM};
use crate::succeed;
use std::fs;
use std::path::Path;
use std::process::Command;

const PREFIX: &str = "target/c/prefix";
const BUILT: &str = "target/c/tests";

/// What is compiled, and how.
struct Program<'a> {
    source: &'a str,
    /// Further flags, the libraries last.
    flags: &'a str,
}

pub fn test() -> Result<(), String> {
    let _ = fs::remove_dir_all("target/c");
    install::run_in(PREFIX)?;
    fs::create_dir_all(BUILT).map_err(|e| format!("{BUILT}: {e}"))?;
    for (source, compiler) in [
        ("engine.c", "cc -std=c99 -D_GNU_SOURCE -Wall -Wextra -Werror"),
        ("misuse.c", "cc -std=c99 -D_GNU_SOURCE -Wall -Wextra -Werror"),
        ("cover.cpp", "c++ -std=c++11 -Wall -Wextra -Werror"),
    ] {
        let shared = "-lcaliburn -lpthread";
        run(compiler, &Program { source, flags: shared }, "plain", &[])?;
        let valgrind =
            ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite"];
        run(compiler, &Program { source, flags: &format!("-g {shared}") }, "valgrind", &valgrind)?;
        let sanitized = format!("-g -fsanitize=address,undefined -fno-sanitize-recover=all {shared}");
        run(compiler, &Program { source, flags: &sanitized }, "sanitized", &[])?;
        let within = format!("{PREFIX}/lib/libcaliburn.a {SYSTEM}");
        run(compiler, &Program { source, flags: &within }, "static", &[])?;
    }
    Ok(())
}

/// Compiles a test and runs it, under another program if need be, with a folder of its own.
fn run(compiler: &str, program: &Program<'_>, kind: &str, under: &[&str]) -> Result<(), String> {
    let Program { source, flags } = program;
    let built = Path::new(BUILT).join(format!("{source}.{kind}"));
    let mut words = compiler.split(' ');
    let mut compile = Command::new(words.next().unwrap_or_default());
    compile.args(words).arg(format!("-I{PREFIX}/include")).arg(format!("bindings/c/tests/{source}"));
    compile.arg("-o").arg(&built).arg(format!("-L{PREFIX}/lib")).args(flags.split(' '));
    let done = compile.status().map_err(|e| format!("{compiler}: {e}"))?;
    if !done.success() {
        return Err(format!("compile {source} ({kind}): {done}"));
    }
    let folder = Path::new(BUILT).join(format!("{source}.{kind}.d"));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut command = match under.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(&built);
            command
        }
        None => Command::new(&built),
    };
    command.arg(&folder).env("LD_LIBRARY_PATH", format!("{PREFIX}/lib"));
    succeed(command, &format!("{source}, {kind}"))?;
    fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
}
