//! Programs in other languages whose runtimes have handlers of SIGSEGV of their own, with stores that are caught;
//! and one under a debugger. What is not there is not run, and said.

use crate::succeed_quietly;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = "bindings/c/tests/runtimes";
const FLAGS: [&str; 6] = ["-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC"];

/// Runs them against what was installed in `prefix`, in a folder of their own in `built`.
pub fn test(prefix: &str, built: &str) -> Result<(), String> {
    let folder = PathBuf::from(format!("{built}/runtimes"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let whole = |path: &Path| path.canonicalize().map_err(|e| format!("{}: {e}", path.display()));
    let all = Runtimes { folder: whole(&folder)?, prefix: whole(Path::new(prefix))? };
    let caught = all.compile(&["caught.c"], "caught", &[])?;
    all.compile(&["caught.c"], "libcaught.so", &["-shared"])?;
    all.debugger(&caught)?;
    all.python()?;
    all.java()?;
    all.go()
}

struct Runtimes {
    folder: PathBuf,
    prefix: PathBuf,
}

fn is_there(command: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {command}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        println!("xtask: stores that are caught beside {command}: not run, since it is not there");
    }
    there
}

impl Runtimes {
    fn compile(&self, sources: &[&str], to: &str, more: &[&str]) -> Result<PathBuf, String> {
        let (lib, target) = (self.prefix.join("lib"), self.folder.join(to));
        let mut compiler = Command::new("cc");
        compiler.args(FLAGS).args(more).arg(format!("-I{}", self.prefix.join("include").display()));
        compiler.args(sources.iter().map(|source| format!("{SOURCES}/{source}"))).arg("-o").arg(&target);
        compiler.arg(format!("-L{}", lib.display())).args(["-lcaliburn", "-lpthread"]);
        compiler.arg(format!("-Wl,-rpath,{}", lib.display()));
        succeed_quietly(compiler, to)?;
        Ok(target)
    }

    /// A directory for stores.
    fn stores(&self, of: &str) -> Result<PathBuf, String> {
        let stores = self.folder.join(format!("{of}.d"));
        fs::create_dir(&stores).map_err(|e| format!("{}: {e}", stores.display()))?;
        Ok(stores)
    }

    /// Has it say that all is sound.
    fn sound(&self, mut command: Command, of: &str) -> Result<(), String> {
        let output = command.output().map_err(|e| format!("{of}: {e}"))?;
        let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        match output.status.success() && said[0].contains("sound") {
            true => Ok(()),
            false => Err(format!("stores that are caught, {of}: {}\n{}{}", output.status, said[0], said[1])),
        }
    }

    fn debugger(&self, caught: &Path) -> Result<(), String> {
        if !is_there("gdb") {
            return Ok(());
        }
        let mut gdb = Command::new("gdb");
        gdb.args(["-batch", "-nx", "-ex", "handle SIGSEGV nostop noprint pass", "-ex", "run", "--args"]);
        gdb.arg(caught).arg(self.stores("gdb")?);
        self.sound(gdb, "under gdb")
    }

    fn python(&self) -> Result<(), String> {
        if !is_there("python3") {
            return Ok(());
        }
        let mut python = Command::new("python3");
        python.arg(format!("{SOURCES}/caught.py")).arg(self.folder.join("libcaught.so"));
        python.arg(self.stores("python")?);
        self.sound(python, "beside Python's handler")
    }

    fn java(&self) -> Result<(), String> {
        let home = |javac: PathBuf| Some(javac.canonicalize().ok()?.parent()?.parent()?.to_owned());
        if !is_there("javac") || !is_there("java") {
            return Ok(());
        }
        let found = Command::new("sh").args(["-c", "command -v javac"]).output();
        let found = found.ok().and_then(|output| String::from_utf8(output.stdout).ok());
        let include = found.and_then(|path| home(path.trim().into())).map(|home| home.join("include"));
        let Some(include) = include.filter(|include| include.join("jni.h").exists()) else {
            println!("xtask: stores that are caught beside java: not run, since jni.h is not there");
            return Ok(());
        };
        let includes = [include.clone(), include.join("linux")].map(|path| format!("-I{}", path.display()));
        self.compile(&["caught.c", "java.c"], "libjava_caught.so", &["-shared", &includes[0], &includes[1]])?;
        let mut javac = Command::new("javac");
        javac.arg("-d").arg(&self.folder).arg(format!("{SOURCES}/Caught.java"));
        succeed_quietly(javac, "Caught.java")?;
        let mut java = Command::new("java");
        java.arg("-cp").arg(&self.folder).arg("Caught").arg(self.folder.join("libjava_caught.so"));
        java.arg(self.stores("java")?);
        self.sound(java, "beside the JVM's handler")
    }

    fn go(&self) -> Result<(), String> {
        if !is_there("go") {
            return Ok(());
        }
        let here = Path::new(SOURCES).canonicalize().map_err(|e| format!("{SOURCES}: {e}"))?;
        let linked = format!("-L{} -lcaught -Wl,-rpath,{}", self.folder.display(), self.folder.display());
        let mut go = Command::new("go");
        go.args(["run", "caught.go"]).arg(self.stores("go")?).current_dir(self.folder.join("go"));
        go.env("CGO_CFLAGS", format!("-I{}", here.display())).env("CGO_LDFLAGS", linked);
        go.env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "1");
        let at = self.folder.join("go");
        let made = fs::create_dir(&at).and_then(|()| {
            fs::write(at.join("go.mod"), "module caught\n\ngo 1.19\n")?;
            fs::copy(here.join("caught.go"), at.join("caught.go"))
        });
        made.map_err(|e| format!("{}: {e}", at.display()))?;
        self.sound(go, "beside Go's handler")
    }
}
