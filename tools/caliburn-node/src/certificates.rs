//! `node certificates`: makes what nodes, users and members of etcd show each other.
//!
//! ```text
//!   authority.pem, .key         nodes and users          node-1.pem, .key   alice.pem, .key
//!   etcd-authority.pem, .key    nodes and etcd alone     etcd-node-1.pem, .key   etcd-member-10.0.0.1.pem, .key
//! ```
//!
//! Two authorities, since etcd knows authorities and no users of ours: whoever has a certificate of its authority
//! may write whatever he likes there, such as where nodes are and how transactions end.

use caliburn_dist::credentials::{node_name, user_name};
use caliburn_tools::Failure;
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// How long authorities can be used.
const AUTHORITY_DAYS: u64 = 3650;
/// Clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);

#[derive(Args, Debug)]
pub struct Certificates {
    /// Where they are, made if it is missing. Keep the keys of the authorities from everybody else.
    directory: PathBuf,
    /// The cluster's name: a-z, 0-9, '-'.
    #[arg(long)]
    cluster: String,
    /// Number of a node or of a data server, which gets one for nodes and users, and one for etcd. May be given
    /// again.
    #[arg(long = "node", value_name = "NUMBER")]
    nodes: Vec<u64>,
    /// Name of a user. May be given again.
    #[arg(long = "user", value_name = "NAME")]
    users: Vec<String>,
    /// Host of a member of etcd, a name or an IP address. May be given again.
    #[arg(long = "etcd-member", value_name = "HOST")]
    members: Vec<String>,
    /// Days that they can be used; authorities have ten years.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=AUTHORITY_DAYS))]
    days: u64,
}

/// An authority, and where what it makes goes.
struct Authority<'d> {
    dir: &'d Path,
    issuer: Issuer<'static, KeyPair>,
}

/// A file of its owner's alone, durable, where there was none.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = open.and_then(|mut file: File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| format!("{}: {error}", path.display()).into())
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// From a moment ago on.
fn params(names: &[String], common: &str, days: u64) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(names)?;
    let now = SystemTime::now();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + Duration::from_secs(days * 24 * 3600)).into();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    Ok(params)
}

impl<'d> Authority<'d> {
    /// The one that is there, or another one.
    fn of(dir: &'d Path, name: &str, common: &str) -> Result<Authority<'d>, Failure> {
        let [certificate, key] = ["pem", "key"].map(|kind| dir.join(format!("{name}.{kind}")));
        if certificate.exists() {
            let pair = KeyPair::from_pem(&read(&key)?)?;
            return Ok(Authority { dir, issuer: Issuer::from_ca_cert_pem(&read(&certificate)?, pair)? });
        }
        let mut params = params(&[], common, AUTHORITY_DAYS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pair = KeyPair::generate()?;
        let made = params.self_signed(&pair)?;
        // The certificate last: when that is there, so is its key.
        write(&key, &pair.serialize_pem())?;
        write(&certificate, &made.pem())?;
        Ok(Authority { dir, issuer: Issuer::new(params, pair) })
    }

    /// A certificate of a name, and its key.
    fn make(&self, file: &str, name: &str, days: u64) -> Result<(), Failure> {
        let [certificate, key] = ["pem", "key"].map(|kind| self.dir.join(format!("{file}.{kind}")));
        if certificate.exists() {
            return Err(format!(
                "{} is there already; move it away if it is not to be used",
                certificate.display()
            )
            .into());
        }
        let mut params = params(&[name.to_owned()], file, days)?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let pair = KeyPair::generate()?;
        let made = params.signed_by(&pair, &self.issuer)?;
        // Left by one that was cut short.
        if key.exists() {
            std::fs::remove_file(&key)?;
        }
        write(&key, &pair.serialize_pem())?;
        write(&certificate, &made.pem())?;
        println!("{}", certificate.display());
        Ok(())
    }
}

/// A word that can be part of a name in a certificate.
fn is_label(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(letters)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

impl Certificates {
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let Certificates { directory, cluster, nodes, users, members, days } = self;
        if let Some(wrong) = users.iter().chain([cluster]).find(|name| !is_label(name)) {
            return Err(format!(
                "{wrong:?} can't be in a certificate: a-z, 0-9 and '-', at most 63, '-' not at an end"
            )
            .into());
        }
        // Files are named after them.
        let reserved = |name: &&String| {
            matches!(&***name, "authority" | "etcd-authority")
                || name.starts_with("node-")
                || name.starts_with("etcd-")
        };
        if let Some(wrong) = users.iter().find(reserved) {
            return Err(format!("user {wrong:?} would have a file that is named like another's").into());
        }
        if let Some(wrong) = members.iter().find(|host| host.is_empty() || host.contains(['/', '\0'])) {
            return Err(format!("{wrong:?} is no host").into());
        }
        std::fs::create_dir_all(directory)?;
        let own = Authority::of(directory, "authority", cluster)?;
        let etcd = Authority::of(directory, "etcd-authority", &format!("{cluster} etcd"))?;
        for node in nodes {
            own.make(&format!("node-{node}"), &node_name(cluster, *node), *days)?;
            etcd.make(&format!("etcd-node-{node}"), &node_name(cluster, *node), *days)?;
        }
        users.iter().try_for_each(|user| own.make(user, &user_name(cluster, user), *days))?;
        members.iter().try_for_each(|host| etcd.make(&format!("etcd-member-{host}"), host, *days))?;
        File::open(directory)?.sync_all()?;
        Ok(ExitCode::SUCCESS)
    }
}
