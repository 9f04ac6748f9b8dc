//! `cargo xtask c`: the C libraries are installed into a folder of the build's, and the tests that are written
//! in C and C++ are compiled against that, as anybody's programs would be, and run: plainly, under valgrind,
//! with the compiler's sanitizers, linked to the static library.

use crate::install::{self, SYSTEM};
use crate::{runtimes, succeed_quietly};
use std::fs;
use std::path::Path;
use std::process::Command;

const PREFIX: &str = "target/c/prefix";
const BUILT: &str = "target/c/tests";
const C: &str = "cc -std=c99 -D_GNU_SOURCE -Wall -Wextra -Werror";
const CXX: &str = "c++ -std=c++11 -Wall -Wextra -Werror";
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    // A store that faults is repeated after the handler: its registers must be there.
    "--vex-iropt-register-updates=allregs-at-mem-access",
];
const SANITIZERS: &str = "-g -fsanitize=address,undefined -fno-sanitize-recover=all";

/// What is compiled, with what, and linked to what.
struct Program<'a> {
    source: &'a str,
    compiler: &'a str,
    /// Shared libraries, and the static ones in their place.
    shared: &'a str,
    fixed: String,
}

pub fn test() -> Result<(), String> {
    let _ = fs::remove_dir_all("target/c");
    install::run_in(PREFIX)?;
    fs::create_dir_all(BUILT).map_err(|e| format!("{BUILT}: {e}"))?;
    let (c, lib) = ("bindings/c/tests", format!("{PREFIX}/lib"));
    let engine = format!("{lib}/libcaliburn.a {SYSTEM}");
    for (source, compiler) in [
        ("engine.c", C),
        ("misuse.c", C),
        ("cover.cpp", CXX),
        ("typed.cpp", CXX),
        ("rms.c", C),
        ("vista.c", C),
        ("fork.c", C),
        ("streams.c", C),
    ] {
        let source = &format!("{c}/{source}");
        Program { source, compiler, shared: "-lcaliburn -lpthread", fixed: engine.clone() }.every_way()?;
    }
    let fixed = format!("{lib}/libcaliburn_pm.a {SYSTEM}");
    let shared = "-lcaliburn_pm -lpthread";
    Program { source: "bindings/pm/tests/pm.c", compiler: C, shared, fixed }.every_way()?;
    for source in ["rvm.c", "heap.c"] {
        let source = &format!("bindings/rvm/tests/{source}");
        let fixed = format!("{lib}/librds.a {lib}/libseg.a {lib}/librvm.a {SYSTEM}");
        Program { source, compiler: C, shared: "-lrds -lseg -lrvm", fixed: fixed.clone() }.every_way()?;
        for shared in ["-lrdspt -lsegpt -lrvmpt", "-lrdslwp -lseglwp -lrvmlwp"] {
            let flavour = Program { source, compiler: C, shared, fixed: String::new() };
            flavour.run(shared, "flavour", &[])?;
        }
    }
    let (source, shared) = ("bindings/rvm/tests/hostile.c", "-lrds -lseg -lrvm");
    Program { source, compiler: C, shared, fixed: String::new() }.run(shared, "plain", &[])?;
    runtimes::test(PREFIX, BUILT)?;
    with_rust()?;
    camelot()?;
    headers()?;
    manual()?;
    tutorial()
}

/// Typed objects that a program in Rust and one in C++ change in turn.
fn with_rust() -> Result<(), String> {
    let folder = format!("{BUILT}/with_rust.d");
    fs::create_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))?;
    let rust = |what: &str| {
        let mut command = Command::new("cargo");
        command.args([
            "run",
            "--quiet",
            "--release",
            "-p",
            "caliburn",
            "--example",
            "with_cpp",
            "--",
            &folder,
            what,
        ]);
        succeed_quietly(command, &format!("typed objects in Rust: {what}"))
    };
    let cpp = |what: &str| {
        let mut command = Command::new(format!("{BUILT}/typed.cpp.plain"));
        command.args([&folder, what]).env("LD_LIBRARY_PATH", format!("{PREFIX}/lib"));
        succeed_quietly(command, &format!("typed objects in C++: {what}"))
    };
    rust("make")?;
    cpp("change")?;
    rust("check")?;
    cpp("check")?;
    fs::remove_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))
}

/// The paper's server and client are built with what was installed; without a node's environment they say so. That
/// they run is tested in their own crate.
fn camelot() -> Result<(), String> {
    let (sources, to) = ("bindings/camelot/tests/paper", format!("{BUILT}/camelot.d"));
    fs::create_dir_all(&to).map_err(|e| format!("{to}: {e}"))?;
    for interface in ["small_record_array", "bank"] {
        let mut stubs = Command::new(format!("{PREFIX}/bin/camelot-stubs"));
        stubs.args([&format!("{sources}/{interface}.defs"), "--out", &to]);
        succeed_quietly(stubs, &format!("stubs of {interface}"))?;
    }
    for program in ["server", "client"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"]);
        compiler.args([&format!("-I{PREFIX}/include"), &format!("-I{to}"), &format!("-I{sources}")]);
        compiler.arg(format!("{sources}/{program}.c"));
        let mut stubs = vec!["small_record_array_user", "bank_user"];
        stubs.extend((program == "server").then_some("small_record_array_server"));
        compiler.args(stubs.iter().map(|stub| format!("{to}/{stub}.c")));
        compiler.args(["-o", &format!("{to}/{program}"), &format!("{PREFIX}/lib/libcamelot.a")]);
        compiler.args(SYSTEM.split(' '));
        succeed_quietly(compiler, &format!("camelot's {program}"))?;
        let said = Command::new(format!("{to}/{program}")).env_clear().output();
        let said = said.map_err(|e| format!("{to}/{program}: {e}"))?.stderr;
        if !String::from_utf8_lossy(&said).contains("is not set") {
            return Err(format!("{to}/{program} says {}", String::from_utf8_lossy(&said)));
        }
    }
    Ok(())
}

/// Every manual page is one that the formatter has nothing to say against.
fn manual() -> Result<(), String> {
    for section in ["man1", "man3"] {
        let folder = format!("{PREFIX}/share/man/{section}");
        for page in fs::read_dir(&folder).map_err(|e| format!("{folder}: {e}"))? {
            let page = page.map_err(|e| e.to_string())?.path();
            let output = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output();
            let said = output.map_err(|e| format!("groff: {e}"))?.stderr;
            if !said.is_empty() {
                return Err(format!("{}: {}", page.display(), String::from_utf8_lossy(&said)));
            }
        }
    }
    Ok(())
}

/// The programs of the C tutorial: each is compiled as the page says, and prints what stands behind it.
fn tutorial() -> Result<(), String> {
    let page = "docs/c-tutorial.md";
    let text = fs::read_to_string(page).map_err(|e| format!("{page}: {e}"))?;
    let mut blocks = text.split("```").skip(1).step_by(2).peekable();
    let mut programs = 0;
    while let Some(block) = blocks.next() {
        let Some((language @ ("c" | "cpp"), program)) = block.split_once('\n') else { continue };
        let expected = blocks.next_if(|next| next.starts_with("text\n"));
        let expected = expected.ok_or_else(|| format!("{page}: a program without what it prints"))?;
        let module = if program.lines().next().is_some_and(|line| line.ends_with("with rvm")) {
            "rvm"
        } else {
            "caliburn"
        };
        let source = format!("{BUILT}/tutorial{programs}.{language}");
        install::write(Path::new(&source), program)?;
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", module]).env("PKG_CONFIG_PATH", format!("{PREFIX}/lib/pkgconfig"));
        let flags = ask.output();
        let flags =
            String::from_utf8_lossy(&flags.map_err(|e| format!("pkg-config: {e}"))?.stdout).into_owned();
        let built = std::path::absolute(format!("{source}.built")).map_err(|e| e.to_string())?;
        let mut compile = Command::new(if language == "c" { "cc" } else { "c++" });
        compile.args(["-Wall", "-Werror"]).arg(&source).arg("-o").arg(&built).args(flags.split_whitespace());
        succeed_quietly(compile, &format!("compile program {programs} of the tutorial"))?;
        let folder = format!("{source}.d");
        fs::create_dir_all(&folder).map_err(|e| format!("{folder}: {e}"))?;
        let library = std::path::absolute(format!("{PREFIX}/lib")).map_err(|e| e.to_string())?;
        let output = Command::new(&built).current_dir(&folder).env("LD_LIBRARY_PATH", library).output();
        let output = output.map_err(|e| format!("{}: {e}", built.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() || Some(printed.as_str()) != expected.strip_prefix("text\n") {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!(
                "program {programs} of {page}: {}, printed {printed:?}, said {said:?}",
                output.status
            ));
        }
        programs += 1;
    }
    if programs < 4 { Err(format!("{page}: only {programs} programs were found")) } else { Ok(()) }
}

/// The headers of RVM compile as the oldest C that programs for it are written in, and as C++, again and again.
fn headers() -> Result<(), String> {
    let text = "#include <rvm/rvm.h>\n#include <rvm/rvm_statistics.h>\n#include <rvm/rvm_segment.h>\n#include <rvm/rds.h>\n";
    for (name, compiler) in
        [("old.c", "cc -std=gnu89 -Wall -Werror"), ("old.cpp", "c++ -std=c++98 -Wall -Werror")]
    {
        let source = format!("{BUILT}/{name}");
        install::write(
            Path::new(&source),
            &format!("{text}{text}int main(void) {{ return RVM_PAGE_SIZE == 0; }}\n"),
        )?;
        Program { source: &source, compiler, shared: "-lrvm", fixed: String::new() }.run(
            "-lrvm",
            "headers",
            &[],
        )?;
    }
    Ok(())
}

impl Program<'_> {
    fn every_way(&self) -> Result<(), String> {
        self.run(self.shared, "plain", &[])?;
        self.run(&format!("-g {}", self.shared), "valgrind", &VALGRIND)?;
        self.run(&format!("{SANITIZERS} {}", self.shared), "sanitized", &[])?;
        self.run(&self.fixed, "static", &[])
    }

    /// Compiles the program and runs it, under another one if need be, with a folder of its own.
    fn run(&self, flags: &str, kind: &str, under: &[&str]) -> Result<(), String> {
        let name = Path::new(self.source).file_name().unwrap_or_default().to_string_lossy();
        let built = Path::new(BUILT).join(format!("{name}.{kind}"));
        let mut words = self.compiler.split(' ');
        let mut compile = Command::new(words.next().unwrap_or_default());
        compile.args(words).arg(format!("-I{PREFIX}/include")).arg(self.source).arg("-o").arg(&built);
        compile.arg(format!("-L{PREFIX}/lib")).args(flags.split(' '));
        let done = compile.status().map_err(|e| format!("{}: {e}", self.compiler))?;
        if !done.success() {
            return Err(format!("compile {name} ({kind}): {done}"));
        }
        let folder = Path::new(BUILT).join(format!("{name}.{kind}.d"));
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
        // Some provoke panics; only one that fails has to be read.
        command.env("RUST_BACKTRACE", "0");
        succeed_quietly(command, &format!("{name}, {kind}, {flags}"))?;
        fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
    }
}
