//! The crash tests' command.

#[cfg(caliburn_sim)]
mod campaign;
#[cfg(caliburn_sim)]
mod command;

#[cfg(caliburn_sim)]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(caliburn_sim))]
fn main() {
    eprintln!("built without --cfg caliburn_sim: use cargo xtask torture");
    std::process::exit(2);
}
