//! What a process of a cluster is told by its environment: variables, as [`data_server`](crate::data_server)
//! lists them.

use crate::cluster::{Cluster, NameError};
use crate::credentials::{Credentials, CredentialsError};
use crate::directory::Directory;
use crate::keep::etcd::{Etcd, KeepError};
use crate::keep::names::Names;
use crate::log_plan::LogPlan;
use crate::node::ServeError;
use crate::process_id::ProcessId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// All that a process can be told in.
pub(crate) const VARIABLES: [&str; 25] = [
    "CALIBURN_SERVER",
    "CALIBURN_CLUSTER",
    "CALIBURN_NUMBER",
    "CALIBURN_STORE",
    "CALIBURN_LISTEN",
    "CALIBURN_ETCD",
    "CALIBURN_NODES",
    "CALIBURN_AUTHORITY",
    "CALIBURN_CERTIFICATE",
    "CALIBURN_KEY",
    "CALIBURN_ETCD_AUTHORITY",
    "CALIBURN_ETCD_CERTIFICATE",
    "CALIBURN_ETCD_KEY",
    "CALIBURN_QUOTA",
    "CALIBURN_LOG",
    "CALIBURN_LOG_BYTES",
    "CALIBURN_DUPLEX_LOG",
    "CALIBURN_RECOVERY_MS",
    "CALIBURN_FORMER_LOGS",
    "CALIBURN_DUMPS",
    "CALIBURN_DUMP_AT",
    "CALIBURN_FORGET_CLOCK",
    "CALIBURN_TIMESTAMPS",
    "CALIBURN_DAEMON",
    "CALIBURN_SUPERVISOR",
];

/// PEM files.
const CERTIFICATES: [&str; 3] = ["CALIBURN_AUTHORITY", "CALIBURN_CERTIFICATE", "CALIBURN_KEY"];
const ETCD_CERTIFICATES: [&str; 3] =
    ["CALIBURN_ETCD_AUTHORITY", "CALIBURN_ETCD_CERTIFICATE", "CALIBURN_ETCD_KEY"];

/// What a process is told.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Its name.
    pub name: String,
    /// The cluster.
    pub cluster: String,
    /// Its number in the cluster.
    pub number: u64,
    /// The directory of its store.
    pub store: PathBuf,
    /// Where it serves.
    pub listen: Option<SocketAddr>,
    /// Members of etcd.
    pub etcd: Vec<String>,
    /// A file of nodes.
    pub nodes: Option<PathBuf>,
    /// PEM files: the authority's certificate, its own, its key.
    pub certificates: Option<[PathBuf; 3]>,
    /// The same for etcd, if that has an authority of its own.
    pub etcd_certificates: Option<[PathBuf; 3]>,
    /// Bytes of segments and log.
    pub quota: Option<u64>,
    /// Where its log is.
    pub log: LogPlan,
    /// Its clock forgets how far it had gone, if it has not obeyed this number before; 0 is none.
    pub forget_clock: u64,
    /// Its cluster has no timestamps.
    pub without_timestamps: bool,
    /// The daemon's number and address.
    pub daemon: Option<(u64, String)>,
    /// The process that supervises it.
    pub supervisor: Option<ProcessId>,
}

/// Where a program has the names of a cluster from, as long as it lives.
#[derive(Debug)]
pub enum Follows {
    /// From etcd, to which it has access.
    Etcd(Names),
    /// From nodes that it knows beforehand.
    Nodes(Directory),
}

/// What an environment variable has to do with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// It is not there.
    #[error(
        "{0} is not set: see the documentation of caliburn_dist::data_server, or start the server by caliburn-node"
    )]
    Missing(&'static str),
    /// It is not what it should be.
    #[error("{0} is {1:?}, and should be {2}")]
    Wrong(&'static str, String, &'static str),
    /// Certificates.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A certificate is somebody else's.
    #[error("{0}: the certificate should name {1}")]
    Certificate(PathBuf, String),
    /// Nodes.
    #[error(transparent)]
    Names(#[from] NameError),
    /// The members of etcd.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// What the operating system says.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
    /// While it served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Environment {
    /// Reads the variables.
    ///
    /// # Errors
    /// [`EnvironmentError::Missing`], [`EnvironmentError::Wrong`].
    pub fn read() -> Result<Environment, EnvironmentError> {
        Environment::of(|name| std::env::var(name).ok())
    }

    fn of(get: impl Fn(&str) -> Option<String>) -> Result<Environment, EnvironmentError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let need = |name: &'static str| get(name).ok_or(EnvironmentError::Missing(name));
        fn parsed<T: std::str::FromStr>(
            name: &'static str,
            value: String,
            what: &'static str,
        ) -> Result<T, EnvironmentError> {
            value.parse().map_err(|_| EnvironmentError::Wrong(name, value, what))
        }
        // All three, or none.
        let files = |pem: [&'static str; 3]| -> Result<Option<[PathBuf; 3]>, EnvironmentError> {
            match pem.iter().any(|name| get(name).is_some()) {
                true => Ok(Some([need(pem[0])?.into(), need(pem[1])?.into(), need(pem[2])?.into()])),
                false => Ok(None),
            }
        };
        let daemon = get("CALIBURN_DAEMON").map(|value| {
            let parts =
                value.split_once('=').and_then(|(number, at)| Some((number.parse().ok()?, at.to_owned())));
            parts.ok_or(EnvironmentError::Wrong("CALIBURN_DAEMON", value, "number=address"))
        });
        let supervisor = get("CALIBURN_SUPERVISOR")
            .map(|value| parsed("CALIBURN_SUPERVISOR", value, "a process, as the daemon writes it"));
        let number = |name| get(name).map(|value| parsed(name, value, "a number")).transpose();
        Ok(Environment {
            name: need("CALIBURN_SERVER")?,
            cluster: need("CALIBURN_CLUSTER")?,
            number: parsed("CALIBURN_NUMBER", need("CALIBURN_NUMBER")?, "a number")?,
            store: need("CALIBURN_STORE")?.into(),
            listen: Some(parsed("CALIBURN_LISTEN", need("CALIBURN_LISTEN")?, "such as 127.0.0.1:4101")?),
            etcd: get("CALIBURN_ETCD")
                .map_or_else(Vec::new, |all| all.split(',').map(str::to_owned).collect()),
            nodes: get("CALIBURN_NODES").map(PathBuf::from),
            certificates: files(CERTIFICATES)?,
            etcd_certificates: files(ETCD_CERTIFICATES)?,
            quota: number("CALIBURN_QUOTA")?,
            log: LogPlan {
                path: get("CALIBURN_LOG").map(PathBuf::from),
                bytes: number("CALIBURN_LOG_BYTES")?,
                second: get("CALIBURN_DUPLEX_LOG").map(|path| (path != "none").then(|| path.into())),
                recovery: number("CALIBURN_RECOVERY_MS")?.map(Duration::from_millis),
                former: get("CALIBURN_FORMER_LOGS")
                    .map_or_else(Vec::new, |all| all.split(':').map(PathBuf::from).collect()),
                dumps: get("CALIBURN_DUMPS").map(PathBuf::from),
                dump_at: get("CALIBURN_DUMP_AT")
                    .map(|at| parsed("CALIBURN_DUMP_AT", at, TIMES))
                    .transpose()?,
            },
            forget_clock: number("CALIBURN_FORGET_CLOCK")?.unwrap_or(0),
            without_timestamps: match get("CALIBURN_TIMESTAMPS").as_deref() {
                None | Some("yes") => false,
                Some("no") => true,
                Some(other) => {
                    return Err(EnvironmentError::Wrong("CALIBURN_TIMESTAMPS", other.into(), "yes or no"));
                }
            },
            daemon: daemon.transpose()?,
            supervisor: supervisor.transpose()?,
        })
    }

    /// Reads what a program is told that begins transactions: of the variables those of the cluster, and
    /// `CALIBURN_COORDINATOR`, the number of the node that is to coordinate. `CALIBURN_NODE` is its deprecated
    /// name, as far as that has a number: to the command it is a directory.
    ///
    /// # Errors
    /// [`EnvironmentError::Missing`], [`EnvironmentError::Wrong`].
    pub fn read_program() -> Result<Environment, EnvironmentError> {
        Environment::of_program(|name| std::env::var(name).ok())
    }

    fn of_program(get: impl Fn(&str) -> Option<String>) -> Result<Environment, EnvironmentError> {
        let former = || {
            let number = get("CALIBURN_NODE").filter(|node| node.parse::<u64>().is_ok())?;
            tracing::warn!("CALIBURN_NODE={number} is deprecated: say CALIBURN_COORDINATOR={number}");
            Some(number)
        };
        let node = get("CALIBURN_COORDINATOR").filter(|node| !node.is_empty()).or_else(former);
        let node = node.ok_or(EnvironmentError::Missing("CALIBURN_COORDINATOR"))?;
        Environment::of(|name| match name {
            "CALIBURN_NUMBER" => Some(node.clone()),
            // A program has neither of these.
            "CALIBURN_SERVER" | "CALIBURN_STORE" => Some("program".into()),
            "CALIBURN_LISTEN" => Some("127.0.0.1:0".into()),
            _ => get(name),
        })
    }

    /// The cluster, with all that etcd knows of it, or else the nodes of the file, which is followed as long as
    /// the second lives.
    ///
    /// # Errors
    /// [`EnvironmentError`].
    pub async fn found(&self) -> Result<(Cluster, Follows), EnvironmentError> {
        let cluster = self.cluster()?;
        let follows = match self.etcd(&cluster)? {
            Some(etcd) => Follows::Etcd(Names::follow(etcd, cluster.clone()).await?),
            None => Follows::Nodes(Directory::follow(cluster.clone()).await),
        };
        Ok((cluster, follows))
    }

    /// The variables that say this.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut all = vec![
            ("CALIBURN_SERVER", self.name.clone()),
            ("CALIBURN_CLUSTER", self.cluster.clone()),
            ("CALIBURN_NUMBER", self.number.to_string()),
            ("CALIBURN_STORE", path(&self.store)),
            ("CALIBURN_ETCD", self.etcd.join(",")),
        ];
        all.extend(self.listen.map(|listen| ("CALIBURN_LISTEN", listen.to_string())));
        all.extend(self.nodes.iter().map(|nodes| ("CALIBURN_NODES", path(nodes))));
        for (names, files) in
            [(CERTIFICATES, &self.certificates), (ETCD_CERTIFICATES, &self.etcd_certificates)]
        {
            all.extend(files.iter().flatten().zip(names).map(|(file, name)| (name, path(file))));
        }
        all.extend(self.quota.map(|quota| ("CALIBURN_QUOTA", quota.to_string())));
        all.extend(self.log.variables());
        if self.forget_clock != 0 {
            all.push(("CALIBURN_FORGET_CLOCK", self.forget_clock.to_string()));
        }
        if self.without_timestamps {
            all.push(("CALIBURN_TIMESTAMPS", "no".into()));
        }
        all.extend(self.daemon.iter().map(|(number, at)| ("CALIBURN_DAEMON", format!("{number}={at}"))));
        all.extend(self.supervisor.map(|pid| ("CALIBURN_SUPERVISOR", pid.to_string())));
        all
    }

    /// The cluster, as far as it is known without etcd.
    ///
    /// # Errors
    /// When certificates can't be used, or the file of nodes.
    pub fn cluster(&self) -> Result<Cluster, EnvironmentError> {
        let cluster = match &self.certificates {
            None => Cluster::new(&*self.cluster),
            Some([authority, certificate, key]) => {
                Cluster::secured(&*self.cluster, Credentials::read(authority, certificate, key)?)?
            }
        };
        match &self.nodes {
            None => Ok(cluster),
            Some(file) => Ok(cluster.read_nodes(file)?),
        }
    }

    /// What etcd is shown: certificates of its own authority, or else the cluster's.
    ///
    /// # Errors
    /// When they can't be used.
    pub(crate) fn etcd_credentials(
        &self,
        cluster: &Cluster,
    ) -> Result<Option<Credentials>, EnvironmentError> {
        match &self.etcd_certificates {
            Some([authority, certificate, key]) => Ok(Some(Credentials::read(authority, certificate, key)?)),
            None => Ok(cluster.credentials().cloned()),
        }
    }

    /// Whoever keeps slots and names.
    pub(crate) fn etcd(&self, cluster: &Cluster) -> Result<Option<Etcd>, EnvironmentError> {
        if self.etcd.is_empty() {
            return Ok(None);
        }
        let members = self.etcd.iter().map(String::as_str);
        Ok(Some(match self.etcd_credentials(cluster)? {
            None => Etcd::new(members, &self.cluster)?,
            Some(credentials) => Etcd::secured(members, &self.cluster, &credentials)?,
        }))
    }

    /// How others reach what serves at an address.
    pub fn reached_at(&self, address: SocketAddr) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }
}

/// What times of day are like.
const TIMES: &str = "times of day in UTC, such as 03:00,15:30";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn read(variables: &[(&'static str, String)]) -> Result<Environment, EnvironmentError> {
        let all: BTreeMap<&str, String> = variables.iter().cloned().collect();
        Environment::of(|name| all.get(name).cloned())
    }

    #[test]
    fn a_program_is_told_who_coordinates() {
        let number = |told: &[(&'static str, &'static str)]| {
            let all = [&[("CALIBURN_CLUSTER", "c")], told].concat();
            let get =
                |name: &str| all.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
            Environment::of_program(get).map(|told| told.number).map_err(|error| error.to_string())
        };
        assert_eq!(number(&[("CALIBURN_COORDINATOR", "3")]), Ok(3));
        assert_eq!(number(&[("CALIBURN_COORDINATOR", "3"), ("CALIBURN_NODE", "/var/lib/caliburn")]), Ok(3));
        assert_eq!(number(&[("CALIBURN_COORDINATOR", "3"), ("CALIBURN_NODE", "4")]), Ok(3));
        assert_eq!(number(&[("CALIBURN_NODE", "4")]), Ok(4), "its former name");
        let missing = number(&[("CALIBURN_NODE", "/var/lib/caliburn")]).unwrap_err();
        assert!(missing.starts_with("CALIBURN_COORDINATOR is not set"), "{missing}");
    }

    #[test]
    fn what_is_told_is_read() {
        let told = Environment {
            name: "bank".into(),
            cluster: "c".into(),
            number: 7,
            store: "/s".into(),
            listen: Some("127.0.0.1:4101".parse().unwrap()),
            etcd: vec!["http://a:1".into(), "http://b:2".into()],
            nodes: Some("/n".into()),
            certificates: Some(["/a".into(), "/c".into(), "/k".into()]),
            etcd_certificates: Some(["/ea".into(), "/ec".into(), "/ek".into()]),
            quota: Some(1 << 30),
            log: LogPlan {
                path: Some("/log".into()),
                bytes: Some(1 << 20),
                second: Some(None),
                recovery: Some(Duration::from_millis(500)),
                former: vec!["/before".into(), "/and before".into()],
                dumps: Some("/dumps".into()),
                dump_at: Some("03:00".parse().unwrap()),
            },
            forget_clock: 7,
            without_timestamps: true,
            daemon: Some((1, "https://127.0.0.1:4100".into())),
            supervisor: ProcessId::of(std::process::id()),
        };
        assert_eq!(read(&told.variables()).unwrap().variables(), told.variables());
        let without = |name: &str| {
            let mut all = told.variables();
            all.retain(|variable| variable.0 != name);
            read(&all).unwrap_err().to_string()
        };
        assert!(without("CALIBURN_STORE").starts_with("CALIBURN_STORE is not set"));
        assert!(without("CALIBURN_KEY").starts_with("CALIBURN_KEY is not set"));
        assert!(without("CALIBURN_ETCD_KEY").starts_with("CALIBURN_ETCD_KEY is not set"));
        let mut wrong = told.variables();
        wrong.push(("CALIBURN_DAEMON", "1:x".into()));
        let wrong = read(&wrong).unwrap_err().to_string();
        assert_eq!(wrong, "CALIBURN_DAEMON is \"1:x\", and should be number=address");
    }
}
