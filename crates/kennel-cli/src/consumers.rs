//! `consumers`: named readers of events.

use crate::{
    complete,
    failure::Failure,
    link::Link,
    table::{self, Cell},
    words,
};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use kennel_proto::pb;

#[derive(Debug, Subcommand)]
pub enum ConsumersCommand {
    /// List consumers of a run, or of the node
    #[command(alias = "list")]
    Ls {
        /// Run to list the consumers of
        #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
        run: Option<String>,
    },
    /// Show one consumer
    #[command(alias = "inspect")]
    Get(ConsumerRef),
    /// Delete a consumer; its reader gets an error
    #[command(alias = "delete")]
    Rm(ConsumerRef),
}

#[derive(Debug, Args)]
pub struct ConsumerRef {
    /// Name of the consumer
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Run that it reads [default: many, by a filter]
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) run: Option<String>,
    /// Owner that registered it [default: the caller's]
    #[arg(long)]
    pub(crate) owner: Option<String>,
}

/// Most consumers that a server returns at once.
const PAGE_SIZE: i32 = 1000;

pub(crate) async fn consumers(link: &Link, command: ConsumersCommand) -> Result<(), Failure> {
    match command {
        ConsumersCommand::Ls { run } => {
            list(link, link.run_id_or_none(run.as_deref()).await?).await
        }
        ConsumersCommand::Get(ConsumerRef { name, run, owner }) => {
            let request = pb::GetConsumerRequest {
                run_id: link.run_id_or_none(run.as_deref()).await?,
                consumer: name,
                owner: owner.unwrap_or_default(),
            };
            show(link, link.call(request).await?.consumer)
        }
        ConsumersCommand::Rm(ConsumerRef { name, run, owner }) => {
            let request = pb::DeleteConsumerRequest {
                run_id: link.run_id_or_none(run.as_deref()).await?,
                consumer: name,
                owner: owner.unwrap_or_default(),
            };
            show(link, link.call(request).await?.consumer)
        }
    }
}

fn show(link: &Link, consumer: Option<pb::Consumer>) -> Result<(), Failure> {
    let consumer = consumer.unwrap_or_default();
    link.print(&consumer, || table(std::slice::from_ref(&consumer)))
}

async fn list(link: &Link, run_id: String) -> Result<(), Failure> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConsumersRequest {
            run_id: run_id.clone(),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = link.call(request).await?;
        found.extend(page.consumers);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    link.print_all(&found, || table(&found))
}

fn table(consumers: &[pb::Consumer]) -> String {
    let row = |consumer: &pb::Consumer| {
        let run = match &*consumer.run_id {
            "" => "many runs",
            run => run,
        };
        vec![
            Cell::from(&consumer.name),
            Cell::from(&consumer.owner),
            Cell::from(run),
            Cell::from(words::consumer_state(consumer.state())),
            Cell::or_dash(consumer.acked_seq),
        ]
    };
    let rows = consumers.iter().map(row).collect();
    table::table(&["NAME", "OWNER", "RUN", "STATE", "ACKED"], rows, false)
}
