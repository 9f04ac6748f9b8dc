//! Makes stubs of an interface: see `caliburn_camelot::stubs`.

use caliburn_camelot::stubs::parse;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Makes C functions that call the routines of an interface, a dispatcher that calls them in their server, and the
/// same interface for other languages: NAME.h, NAME_user.c, NAME_server.c, NAME.proto.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// Declarations of routines, as Camelot's MIG had them.
    interface: PathBuf,
    /// Where the files go.
    #[arg(long, default_value = ".")]
    out: PathBuf,
}

fn run(Arguments { interface, out }: &Arguments) -> Result<(), String> {
    let at = interface.display();
    let text = std::fs::read_to_string(interface).map_err(|error| format!("{at}: {error}"))?;
    for (name, text) in parse(&text).map_err(|error| format!("{at}: {error}"))?.files() {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("camelot-stubs: {why}");
            ExitCode::FAILURE
        }
    }
}
