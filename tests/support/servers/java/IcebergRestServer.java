import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Serves Iceberg's REST catalog on a loopback port, over SQLite and a local folder.
 *
 * <p>Upstream's own RESTCatalogServer does the same on all interfaces.
 */
public final class IcebergRestServer {
  public static void main(String[] arguments) throws Exception {
    String folder = arguments[0];
    int port = Integer.parseInt(arguments[1]);
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new org.apache.hadoop.conf.Configuration());
    catalog.initialize(
        "rest",
        Map.of(
            "uri", "jdbc:sqlite:" + folder + "/catalog.db",
            "warehouse", "file:" + folder + "/warehouse",
            "io-impl", "org.apache.iceberg.hadoop.HadoopFileIO",
            "jdbc.schema-version", "V1",
            "clients", "1")); // SQLite has one writer; more connections would fail as busy

    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", port));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
