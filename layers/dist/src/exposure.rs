//! Whether anybody but the nodes could write what the cluster keeps in etcd: where nodes are, which life they live,
//! and how transactions end. Each member is asked, as a user's program could ask it.
//!
//! ```text
//!   1  with what nodes show: it must answer, or nothing can be told
//!   2  with a certificate of the users' authority
//!   3  without a certificate
//! ```
//!
//! What is asked for is a write that etcd checks the rights to, and never does: its condition is never true.

use crate::cluster::Cluster;
use crate::commit::word::Node;
use crate::credentials::Credentials;
use crate::environment::{Environment, EnvironmentError};
use crate::keep::etcd::KeepError;
use crate::node::Node as Running;
use crate::proto::etcd::kv_client::KvClient;
use crate::proto::etcd::{Compare, PutRequest, RequestOp, TxnRequest, compare, request_op};
use caliburn_os::simulated::{planted, unless};
use std::convert::Infallible;
use std::time::Duration;
use tonic::transport::{ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

/// Where notices about it stand.
const ABOUT: &str = "etcd";
/// So often it is looked at again.
const AGAIN: Duration = Duration::from_secs(600);
/// The same, when nothing could be told.
const SOON: Duration = Duration::from_secs(5);
/// So long a member is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked of etcd, and as who.
#[derive(Debug)]
pub(crate) struct Exposure {
    members: Vec<String>,
    /// The node's own epoch.
    key: Vec<u8>,
    /// What etcd is shown by nodes, and what nodes and users show each other.
    shown: Option<Credentials>,
    of_users: Option<Credentials>,
}

/// What a member says to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It could be done.
    Taken,
    /// It may not.
    Refused,
    /// Nobody knows: it is away, or has no majority.
    None,
}

impl Exposure {
    pub fn of(environment: &Environment, cluster: &Cluster) -> Result<Exposure, EnvironmentError> {
        let shown = environment.etcd_credentials(cluster)?;
        let key = match environment.etcd(cluster)? {
            Some(etcd) => etcd.epoch_key(Node(environment.number)),
            None => Vec::new(),
        };
        let (members, of_users) = (environment.etcd.clone(), cluster.credentials().cloned());
        Ok(Exposure { members, key, shown, of_users })
    }

    /// Has a node say so, as long as it runs.
    pub async fn look_again_and_again(&self, node: &Running) -> Infallible {
        if self.members.is_empty() || planted("etcd-not-looked-at") {
            return std::future::pending().await;
        }
        loop {
            let told = self.look().await;
            match &told {
                Ok(None) => node.0.outside.notices.clear(ABOUT),
                Ok(Some(text)) => node.0.outside.notices.set(ABOUT, text.clone()),
                Err(member) => tracing::debug!("etcd's member {member} does not say who could write there"),
            }
            tokio::time::sleep(if told.is_ok() { AGAIN } else { SOON }).await;
        }
    }

    /// What is wrong, if something is.
    ///
    /// # Errors
    /// The member of which nothing could be told, if nothing was found at another.
    async fn look(&self) -> Result<Option<String>, String> {
        let mut unknown = None;
        for member in &self.members {
            match self.of_member(member).await {
                Ok(None) => {}
                Ok(open) => return Ok(open),
                Err(()) => unknown = Some(member.clone()),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    async fn of_member(&self, member: &str) -> Result<Option<String>, ()> {
        let secret = member.starts_with("https:");
        // Without certificates, whoever can run a program on this machine may do everything.
        if self.of_users.is_none() && is_of_this_machine(member) {
            return Ok(None);
        }
        let own = if secret { self.shown.as_ref().map(|shown| shown.client(None)) } else { None };
        if secret && own.is_none() || self.ask(member, own).await != Answer::Taken {
            return Err(());
        }
        let cure = "Give etcd an authority of its own, of which nodes have certificates and users don't: caliburn-node \
                    certificates makes them, and caliburn-node run takes them (--etcd-authority, --etcd-certificate, \
                    --etcd-key)";
        let nobody = if secret { self.shown.as_ref().map(Credentials::nobody) } else { None };
        if self.ask(member, nobody).await == Answer::Taken {
            return Ok(Some(format!(
                "etcd's member {member} takes writes of anybody who reaches it, without a certificate: of where nodes are, \
                 of their epochs, and of how transactions end. {cure}"
            )));
        }
        let (Some(shown), Some(of_users)) = (&self.shown, &self.of_users) else { return Ok(None) };
        let user = shown.client_as(of_users);
        if unless("users-not-asked-as", self.ask(member, Some(user)).await == Answer::Taken) {
            return Ok(Some(format!(
                "etcd's member {member} takes writes with certificates of the users' authority: every user of the cluster \
                 can change where nodes are, their epochs, and how transactions end. {cure}"
            )));
        }
        Ok(None)
    }

    async fn ask(&self, member: &str, tls: Option<ClientTlsConfig>) -> Answer {
        let asked = tokio::time::timeout(PATIENCE, self.write(member, tls)).await;
        match asked {
            Ok(Ok(())) => Answer::Taken,
            Ok(Err(KeepError::NoAnswer(status))) if is_inconclusive(&status) => Answer::None,
            Ok(Err(_)) => Answer::Refused,
            Err(_) => Answer::None,
        }
    }

    /// A write that is never done.
    async fn write(&self, member: &str, tls: Option<ClientTlsConfig>) -> Result<(), KeepError> {
        let no_address = |error| KeepError::Address(member.to_owned(), error);
        let mut endpoint = Endpoint::from_shared(member.to_owned()).map_err(no_address)?;
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls).map_err(no_address)?;
        }
        let channel = endpoint.connect_timeout(PATIENCE).connect_lazy();
        let never = Compare {
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Create as i32,
            key: self.key.clone(),
            target_union: Some(compare::TargetUnion::CreateRevision(i64::MAX)),
        };
        let put = PutRequest { key: self.key.clone(), value: Vec::new(), lease: 0 };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let txn = TxnRequest { compare: vec![never], success: vec![put], failure: Vec::new() };
        KvClient::new(channel).txn(txn).await?;
        Ok(())
    }
}

/// Whether etcd has let the writer in, and says only that it can't answer.
fn is_inconclusive(status: &Status) -> bool {
    let refuses = matches!(
        status.code(),
        Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument | Code::FailedPrecondition
    );
    status.message().starts_with("etcdserver:") && !refuses
}

fn is_of_this_machine(member: &str) -> bool {
    let host = member.split_once("://").map_or(member, |(_, host)| host);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_ones_own_is_loopback() {
        for own in ["http://127.0.0.1:2379", "http://localhost:1", "http://[::1]:2379", "https://127.8.0.1:1"]
        {
            assert!(is_of_this_machine(own), "{own}");
        }
        for other in ["http://10.0.0.1:2379", "http://localhost.example:1", "http://[fe80::1]:2", "x"] {
            assert!(!is_of_this_machine(other), "{other}");
        }
    }

    #[test]
    fn what_etcd_says_of_itself_tells_nothing() {
        assert!(is_inconclusive(&Status::unavailable("etcdserver: no leader")));
        assert!(!is_inconclusive(&Status::permission_denied("etcdserver: permission denied")));
        assert!(!is_inconclusive(&Status::invalid_argument("etcdserver: user name is empty")));
        assert!(!is_inconclusive(&Status::unavailable("tls handshake eof")));
    }
}
