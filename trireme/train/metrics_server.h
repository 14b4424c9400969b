#pragma once
// MetricsServer: the latest metrics of a run over HTTP, for Prometheus to scrape: GET /metrics.
//
//   MetricsServer server(9400);
//   server.publish(to_prometheus(metrics));

#include <memory>
#include <string>

namespace trireme::train {

class MetricsServer {
 public:
  /// Listens on all addresses from now on, on a thread of its own. ConfigError where the port is
  /// taken or not allowed.
  explicit MetricsServer(int port);
  ~MetricsServer();
  /// What the next requests get. Never waits for a client.
  void publish(std::string text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::train
