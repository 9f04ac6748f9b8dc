//! The libraries for programs that were written for RVM: librvm, libseg and librds, each in three flavours.
//!
//! ```text
//!   librds -> libseg -> librvm -> libcaliburn        PREFIX/include/rvm/*.h, lib/pkgconfig/rvm*.pc
//! ```

use crate::install::{SYSTEM, copy, link, tool, write};
use std::fs;
use std::path::{Path, PathBuf};

const SOURCES: &str = "bindings/rvm/src";
const HEADERS: &str = "bindings/rvm/include/rvm";
const OBJECTS: &str = "target/rvm";

/// Suffix of the names, what the sources are told, and what the flavour is of.
const FLAVOURS: [(&str, &str, &str); 3] = [
    ("", "-DRVM_PLAIN", "no threads"),
    ("pt", "-DRVM_THREADS", "POSIX threads"),
    ("lwp", "-DRVM_LWP", "lightweight processes"),
];

/// A library: its name, its sources, the symbols that others see, and what it needs.
struct Library {
    name: &'static str,
    sources: &'static [&'static str],
    symbols: &'static [&'static str],
    needs: &'static [&'static str],
}

const LIBRARIES: [Library; 3] = [
    Library {
        name: "rvm",
        sources: &[
            "names",
            "offsets",
            "records",
            "state",
            "log",
            "life",
            "map",
            "transaction",
            "statistics",
            "threads",
        ],
        symbols: &["rvm_*"],
        needs: &[],
    },
    Library {
        name: "seg",
        sources: &["segment"],
        symbols: &[
            "rvm_create_segment",
            "rvm_load_segment",
            "rvm_release_segment",
            "rds_rvmsize",
            "rds_startaddr",
        ],
        needs: &["rvm"],
    },
    Library {
        name: "rds",
        sources: &["rds", "rds_blocks", "rds_stats"],
        symbols: &["rds_*", "RegionDefs", "NRegionDefs", "print_heap"],
        needs: &["seg", "rvm"],
    },
];

/// Installs them where libcaliburn was installed.
pub fn install(prefix: &Path) -> Result<(), String> {
    let (include, lib) = (prefix.join("include/rvm"), prefix.join("lib"));
    for folder in [&include, &PathBuf::from(OBJECTS)] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    for header in ["rvm.h", "rvm_statistics.h", "rvm_segment.h", "rds.h"] {
        copy(&Path::new(HEADERS).join(header), &include.join(header))?;
    }
    for (suffix, define, what) in FLAVOURS {
        for library in &LIBRARIES {
            library.build(suffix, define, &lib)?;
        }
        let module = format!("rvm{suffix}");
        write(&lib.join(format!("pkgconfig/{module}.pc")), &pkg_config(prefix, &module, suffix, what))?;
    }
    Ok(())
}

impl Library {
    fn build(&self, suffix: &str, define: &str, lib: &Path) -> Result<(), String> {
        let name = format!("lib{}{suffix}", self.name);
        let mut objects = Vec::new();
        for source in self.sources {
            let object = PathBuf::from(OBJECTS).join(format!("{source}{suffix}.o"));
            let flags = "-std=gnu11 -D_GNU_SOURCE -O2 -g -fPIC -Wall -Wextra -Werror -Ibindings/rvm/include -Ibindings/c/include";
            let source = Path::new(SOURCES).join(format!("{source}.c"));
            tool("cc", &format!("{flags} {define} -c @0 -o @1"), &[&source, &object])?;
            objects.push(object);
        }
        let objects: Vec<&Path> = objects.iter().map(PathBuf::as_path).collect();
        self.shared(&name, suffix, &objects, lib)?;
        self.archive(&name, &objects, lib)
    }

    fn shared(&self, name: &str, suffix: &str, objects: &[&Path], lib: &Path) -> Result<(), String> {
        let script = PathBuf::from(OBJECTS).join(format!("{name}.map"));
        write(&script, &format!("{{ global: {}; local: *; }};\n", self.symbols.join("; ")))?;
        let real = lib.join(format!("{name}.so.1"));
        let needs: String = self.needs.iter().map(|need| format!(" -l{need}{suffix}")).collect();
        let inputs: String = (0..objects.len()).map(|i| format!(" @{}", i + 2)).collect();
        let line = format!(
            "-shared -o @0 {inputs} -L@1{needs} -lcaliburn -lpthread -Wl,-soname,{name}.so.1 -Wl,--as-needed -Wl,-z,defs \
             -Wl,--version-script={} -Wl,-rpath,$ORIGIN",
            script.display()
        );
        let paths: Vec<&Path> = [real.as_path(), lib].into_iter().chain(objects.iter().copied()).collect();
        tool("cc", &line.replace("-L@1", &format!("-L{}", lib.display())), &paths)?;
        link(&real, &lib.join(format!("{name}.so")))
    }

    /// With all that it needs of Caliburn, so that a program links what it always linked.
    fn archive(&self, name: &str, objects: &[&Path], lib: &Path) -> Result<(), String> {
        let (joined, archive) =
            (PathBuf::from(OBJECTS).join(format!("{name}.o")), lib.join(format!("{name}.a")));
        let inputs: String = (1..=objects.len()).map(|i| format!(" @{i}")).collect();
        let paths: Vec<&Path> = [joined.as_path()].into_iter().chain(objects.iter().copied()).collect();
        tool("ld", &format!("-r -o @0{inputs}"), &paths)?;
        let keep: String =
            self.symbols.iter().map(|symbol| format!(" --keep-global-symbol={symbol}")).collect();
        tool("objcopy", &format!("--wildcard{keep} @0"), &[&joined])?;
        let _ = fs::remove_file(&archive);
        if self.needs.is_empty() {
            copy(&lib.join("libcaliburn.a"), &archive)?;
        }
        tool("ar", "rcs @0 @1", &[&archive, &joined])
    }
}

fn pkg_config(prefix: &Path, module: &str, suffix: &str, what: &str) -> String {
    // Programs of this flavour call the package of that name.
    let requires = if suffix == "lwp" { "Requires: lwp\n" } else { "" };
    format!(
        "prefix={}\nexec_prefix=${{prefix}}\nbindir=${{exec_prefix}}/bin\nlibdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\nRVMUTL=${{bindir}}/rvmutl\nRDSINIT=${{bindir}}/rdsinit\n\n\
         Name: {module}\nDescription: RVM, recoverable virtual memory ({what}), by Caliburn\nVersion: 1.29\n\
         {requires}Libs: -L${{libdir}} -lrds{suffix} -lseg{suffix} -lrvm{suffix}\nLibs.private: {SYSTEM}\n\
         Cflags: -I${{includedir}}\n",
        prefix.display()
    )
}
