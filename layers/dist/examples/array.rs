//! The paper's first server (Camelot, section 3.3): a recoverable array of 32-byte records, and a program that
//! writes one in a transaction. `cargo run -p caliburn-dist --example array`.

use caliburn_dist::client::{Application, Error};
use caliburn_dist::cluster::Cluster;
use caliburn_dist::node::Node;
use caliburn_dist::proto::array::array_client::ArrayClient;
use caliburn_dist::proto::array::array_server::{Array, ArrayServer};
use caliburn_dist::proto::array::{ReadReply, ReadRequest, WriteReply, WriteRequest};
use tonic::{Request, Response, Status};

const SIZE: usize = 32;
const RECORDS: usize = 1000;

struct Server(Node);

#[tonic::async_trait]
impl Array for Server {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteReply>, Status> {
        let written = self.0.run(request, |call, WriteRequest { index, value }| {
            if index as usize >= RECORDS || value.len() != SIZE {
                return Err(Status::out_of_range("records are 0 to 999, of 32 bytes"));
            }
            // Locks the record, and changes it.
            call.write(call.region("array")?, index as usize * SIZE, &value)?;
            Ok(WriteReply {})
        });
        written.await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadReply>, Status> {
        let read = self.0.run(request, |call, ReadRequest { index }| {
            let start = index as usize * SIZE;
            Ok(ReadReply { value: call.read(call.region("array")?, start..start + SIZE)? })
        });
        read.await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let cluster = Cluster::new("example").node(1, &address)?.server("testserver", 1);

    let node = Node::builder(cluster.clone(), 1, dir.path().join("store"));
    let node = node.segment("array", (SIZE * RECORDS) as u64).start().await?;
    let serving = node.clone();
    let server = tokio::spawn(async move {
        let array = ArrayServer::new(Server(serving.clone()));
        serving.serve_on(listener, |services| _ = services.add_service(array)).await
    });

    let application = Application::attach(cluster, 1).await?;
    let written = application.transact(async |tx| {
        let mut array = ArrayClient::new(tx.to("testserver@1")?);
        array.write(WriteRequest { index: 7, value: vec![1; SIZE] }).await.map_err(Error::from)?;
        Ok::<_, Error>(array.read(ReadRequest { index: 7 }).await.map_err(Error::from)?.into_inner().value)
    });
    assert_eq!(written.await?, [1; SIZE]);
    println!("a record is written");
    node.stop().await;
    server.await??;
    Ok(())
}
