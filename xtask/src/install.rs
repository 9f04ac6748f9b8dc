//! `cargo xtask install PREFIX`: the C libraries, their headers, and what lets other builds find them.
//!
//! ```text
//!   PREFIX/include/caliburn.h, caliburn.hpp, caliburn_typed.hpp    lib/libcaliburn.so.0, libcaliburn.a
//!   PREFIX/bin/caliburn, rvmutl, rdsinit                           share/man/man1, man3
//!   PREFIX/include/pm.h         lib/libcaliburn_pm.so.0, libcaliburn_pm.a, pkgconfig/caliburn_pm.pc
//!   PREFIX/include/camelot.h    lib/libcamelot.a    bin/camelot-stubs
//!   PREFIX/lib/pkgconfig/caliburn.pc                               lib/cmake/caliburn/caliburnConfig.cmake
//! ```
//!
//! The shared library is linked from the static one, with a version to each symbol (`bindings/c/caliburn.map`) and
//! nothing else visible.

use crate::run;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Rust's library needs of the system.
pub const SYSTEM: &str = "-lgcc_s -lpthread -ldl -lm";
const STATIC: &str = "target/release/libcaliburn_c.a";
const PM: &str = "target/release/libcaliburn_pm_c.a";
const CAMELOT: &str = "target/release/libcaliburn_camelot.a";
const MAP: &str = "bindings/c/caliburn.map";
const MANUAL: &str = "bindings/man";
const HEADERS: &str = "bindings/c/include";

/// Builds and installs everything.
pub fn run_in(prefix: &str) -> Result<(), String> {
    let prefix = std::path::absolute(prefix).map_err(|e| format!("{prefix}: {e}"))?;
    run(
        "cargo build --release --quiet --target-dir target -p caliburn-c -p caliburn-camelot -p caliburn-pm-c -p caliburn-command -p caliburn-rvm-tools",
    )?;
    let (lib, bin, man) = (prefix.join("lib"), prefix.join("bin"), prefix.join("share/man"));
    let folders = [&prefix.join("include"), &lib.join("pkgconfig"), &lib.join("cmake/caliburn"), &bin];
    for folder in folders.into_iter().chain([&man.join("man1"), &man.join("man3")]) {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    for header in ["caliburn.h", "caliburn.hpp", "caliburn_typed.hpp", "rms.h", "vista.h"] {
        copy(&Path::new(HEADERS).join(header), &prefix.join("include").join(header))?;
    }
    for page in fs::read_dir(MANUAL).map_err(|e| format!("{MANUAL}: {e}"))? {
        let page = page.map_err(|e| format!("{MANUAL}: {e}"))?.path();
        let (name, section) = (page.file_name().unwrap_or_default(), page.extension().unwrap_or_default());
        copy(&page, &man.join(format!("man{}", section.to_string_lossy())).join(name))?;
    }
    let header = Path::new(HEADERS).join("caliburn.h");
    let text = fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))?;
    crate::manual::write_pages(&crate::manual::CALIBURN, &text, &man.join("man3"))?;
    let pm = "bindings/pm/include/pm.h";
    let text = fs::read_to_string(pm).map_err(|e| format!("{pm}: {e}"))?;
    crate::manual::write_pages(&crate::manual::PM, &text, &man.join("man3"))?;
    // RVM's tools, by their names.
    copy(Path::new("target/release/caliburn"), &bin.join("caliburn"))?;
    for tool in ["rvmutl", "rdsinit"] {
        copy(&Path::new("target/release").join(tool), &bin.join(tool))?;
    }
    copy(Path::new("bindings/camelot/include/camelot.h"), &prefix.join("include/camelot.h"))?;
    copy(Path::new("target/release/camelot-stubs"), &bin.join("camelot-stubs"))?;
    copy(Path::new(pm), &prefix.join("include/pm.h"))?;
    static_library(STATIC, &lib.join("libcaliburn.a"), &["caliburn_*"])?;
    static_library(PM, &lib.join("libcaliburn_pm.a"), &["pm_*"])?;
    static_library(CAMELOT, &lib.join("libcamelot.a"), &["camelot_*", "Camlib_*"])?;
    shared_library(&lib, "libcaliburn", STATIC, MAP)?;
    shared_library(&lib, "libcaliburn_pm", PM, "bindings/pm/pm.map")?;
    let version = env!("CARGO_PKG_VERSION");
    for (name, about) in
        [("caliburn", "Recoverable memory"), ("caliburn_pm", "Memory that outlives the system")]
    {
        write(&lib.join(format!("pkgconfig/{name}.pc")), &pkg_config(&prefix, version, name, about))?;
    }
    write(&lib.join("cmake/caliburn/caliburnConfig.cmake"), CMAKE)?;
    write(
        &lib.join("cmake/caliburn/caliburnConfigVersion.cmake"),
        &CMAKE_VERSION.replace("@VERSION@", version),
    )?;
    crate::rvm::install(&prefix)?;
    exports(&lib.join("libcaliburn.so"), Path::new(HEADERS).join("caliburn.h"))?;
    println!("installed in {}", prefix.display());
    Ok(())
}

pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("copy {} to {}: {e}", from.display(), to.display()))
}

pub fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A command whose arguments hold no spaces but those of paths.
pub fn tool(program: &str, line: &str, paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(program);
    for word in line.split_whitespace() {
        match word.strip_prefix('@') {
            Some(number) => {
                let path = number.parse().ok().and_then(|i: usize| paths.get(i));
                command.arg(path.ok_or_else(|| format!("{program} {line}: no path {number}"))?);
            }
            None => {
                command.arg(word);
            }
        }
    }
    let done = command.status().map_err(|e| format!("{program}: {e}"))?;
    if done.success() { Ok(()) } else { Err(format!("{program} {line}: {done}")) }
}

/// One object, without what only a compiler reads, in which only Caliburn's own names are visible: a program
/// may link other libraries made with Rust.
fn static_library(from: &str, library: &Path, names: &[&str]) -> Result<(), String> {
    let object = library.with_extension("o");
    tool("ld", "-r --whole-archive @0 -o @1", &[Path::new(from), &object])?;
    let keep: String = names.iter().map(|names| format!("--keep-global-symbol={names} ")).collect();
    let line = format!("--wildcard {keep}--remove-section=.llvmbc --remove-section=.llvmcmd @0");
    tool("objcopy", &line, &[&object])?;
    let _ = fs::remove_file(library);
    tool("ar", "rcs @0 @1", &[library, &object])?;
    fs::remove_file(&object).map_err(|e| e.to_string())
}

fn shared_library(lib: &Path, name: &str, from: &str, map: &str) -> Result<(), String> {
    let script = format!("-Wl,--version-script={map}");
    let line = format!(
        "-shared -o @0 -Wl,--whole-archive @1 -Wl,--no-whole-archive {script} -Wl,-soname,{name}.so.0 \
         -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro,-z,now -Wl,-O1 {SYSTEM}"
    );
    let real = lib.join(format!("{name}.so.0"));
    tool("cc", &line, &[&real, Path::new(from)])?;
    link(&real, &lib.join(format!("{name}.so")))
}

/// A name for a file beside it.
pub fn link(file: &Path, name: &Path) -> Result<(), String> {
    let _ = fs::remove_file(name);
    symlink(file.file_name().unwrap_or_default(), name).map_err(|e| format!("{}: {e}", name.display()))
}

/// Every function of a header must be in its library, under a version, and nothing else.
fn exports(library: &Path, header: PathBuf) -> Result<(), String> {
    let text = fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))?;
    let mut declared: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("caliburn_"))
        .filter(|name| text.lines().any(|l| !l.starts_with("//") && l.contains(&format!("{name}("))))
        .collect();
    declared.sort_unstable();
    declared.dedup();
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let output = output.map_err(|e| format!("nm: {e}"))?.stdout;
    let listed = String::from_utf8_lossy(&output).into_owned();
    let mut found: Vec<&str> = Vec::new();
    for name in listed.lines().filter_map(|line| line.split(' ').nth(2)) {
        match name.split_once("@@") {
            Some((name, _)) => found.push(name),
            None if name.starts_with("CALIBURN_") => {}
            None => return Err(format!("{}: {name} has no version", library.display())),
        }
    }
    found.sort_unstable();
    if found == declared {
        return Ok(());
    }
    let odd: Vec<&&str> = declared
        .iter()
        .filter(|n| !found.contains(n))
        .chain(found.iter().filter(|n| !declared.contains(n)))
        .collect();
    Err(format!("{MAP}: not in step with {}: {odd:?}", header.display()))
}

fn pkg_config(prefix: &Path, version: &str, name: &str, about: &str) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: {name}\n\
         Description: {about}\nVersion: {version}\nLibs: -L${{libdir}} -l{name}\n\
         Libs.private: {SYSTEM}\nCflags: -I${{includedir}}\n",
        prefix.display()
    )
}

const CMAKE: &str = "\
# caliburn::caliburn and caliburn::static
get_filename_component(_caliburn_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)
if(NOT TARGET caliburn::caliburn)
  add_library(caliburn::caliburn SHARED IMPORTED)
  set_target_properties(caliburn::caliburn PROPERTIES
    IMPORTED_LOCATION \"${_caliburn_prefix}/lib/libcaliburn.so\"
    IMPORTED_SONAME libcaliburn.so.0
    INTERFACE_INCLUDE_DIRECTORIES \"${_caliburn_prefix}/include\")
  add_library(caliburn::static STATIC IMPORTED)
  set_target_properties(caliburn::static PROPERTIES
    IMPORTED_LOCATION \"${_caliburn_prefix}/lib/libcaliburn.a\"
    INTERFACE_INCLUDE_DIRECTORIES \"${_caliburn_prefix}/include\"
    INTERFACE_LINK_LIBRARIES \"gcc_s;pthread;dl;m\")
endif()
";
const CMAKE_VERSION: &str = "\
set(PACKAGE_VERSION \"@VERSION@\")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
";
